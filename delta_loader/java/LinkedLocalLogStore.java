package io.github.kafkadeltaexpress;

import io.delta.storage.LocalLogStore;
import java.io.BufferedOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;

/**
 * Delta's log on a local disk for any number of processes.
 *
 * <p>Rules:
 *
 * <ol>
 *   <li>A commit file is written and synced under a temporary name, then hard-linked to its own, without an existence
 *       check: the file system creates the link only where the name does not exist, so one of two processes is
 *       refused. Delta's own log store checks first and then renames, and a rename replaces a file created in
 *       between. delta-rs links (or renames without replacing) too, so it and this class refuse one another.
 *   <li>A file is visible whole or not at all. Its checksum file, which Hadoop reads if there is one, belongs to an
 *       older file, and is deleted before the link is created.
 *   <li>An exception from a link is not conclusive: a network file system may repeat the request. If the name refers
 *       to this process's temporary file, the commit is its own.
 *   <li>A file that may be replaced (_last_checkpoint) is written as Delta does it.
 * </ol>
 */
public class LinkedLocalLogStore extends LocalLogStore {
  /** Created by Delta, with the session's configuration. */
  public LinkedLocalLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      org.apache.hadoop.fs.Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (overwrite) {
      super.write(path, actions, true, configuration);
    } else {
      create(Paths.get(path.toUri().getPath()), actions);
    }
  }

  private static void create(Path file, Iterator<String> actions) throws IOException {
    Path folder = file.getParent();
    if (!Files.isDirectory(folder)) {
      throw new FileNotFoundException("No such file or directory: " + folder);
    }
    Path temporary = folder.resolve("." + file.getFileName() + "." + UUID.randomUUID() + ".tmp");
    try {
      write(temporary, actions);
      if (!Files.exists(file)) {
        Files.deleteIfExists(folder.resolve("." + file.getFileName() + ".crc"));
      }
      link(file, temporary);
    } finally {
      Files.deleteIfExists(temporary);
    }
    syncFolder(folder);
  }

  private static void link(Path file, Path temporary) throws IOException {
    try {
      Files.createLink(file, temporary);
    } catch (IOException | UnsupportedOperationException problem) {
      if (!Files.exists(file)) {
        throw new IOException(
            file
                + " cannot be linked, as it has to be so that no two processes write the same commit; put the table on a"
                + " file system with hard links, or name a log store as spark.delta.logStore.file.impl in loader.spark: "
                + problem,
            problem);
      }
      if (!Files.isSameFile(file, temporary)) {
        FileAlreadyExistsException refusal = new FileAlreadyExistsException(file.toString());
        refusal.initCause(problem);
        throw refusal;
      }
    }
  }

  private static void write(Path file, Iterator<String> actions) throws IOException {
    try (FileChannel channel =
        FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      OutputStream stream = new BufferedOutputStream(Channels.newOutputStream(channel));
      while (actions.hasNext()) {
        stream.write(actions.next().getBytes(StandardCharsets.UTF_8));
        stream.write('\n');
      }
      stream.flush();
      channel.force(true);
    }
  }

  /** Makes an acknowledged commit survive a power failure; not every file system supports this. */
  private static void syncFolder(Path folder) {
    try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
      channel.force(true);
    } catch (IOException unknown) {
      return;
    }
  }
}
