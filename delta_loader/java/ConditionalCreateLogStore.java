package io.github.kafkadeltaexpress;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;

/**
 * Delta's log on S3 for any number of drivers, by the store's own conditional create and nothing else.
 *
 * <p>Rules:
 *
 * <ol>
 *   <li>A commit file is created with {@code If-None-Match: *}. The condition is a mandatory option: a file system
 *       that does not support it refuses, and never writes without it. The write is not preceded by an existence
 *       check, so any refusal comes from the store itself.
 *   <li>An exception from a conditional write is not conclusive, not even a refusal: the client repeats a request
 *       whose response was lost, and is refused because of its own file. The object is therefore read back. This
 *       driver's bytes: the commit is its own (Delta's commits carry a unique transaction id; if two drivers wrote
 *       equal bytes, the log would have once what both wanted). Other bytes: another driver's commit, which Delta
 *       expects as a {@link FileAlreadyExistsException}. Nothing: the exception itself, because the result is unknown
 *       and Delta's caller must check.
 *   <li>A refusal without an object (409: another conditional write is in progress, and may still fail) is retried.
 *       This is safe no matter how the first one ends, because of the second rule.
 *   <li>A file is visible whole or not at all, and listings show it at once: S3 guarantees both.
 *   <li>That holds for files that are written here, and not for a checkpoint, which Delta has Parquet write: when
 *       Parquet fails (no codec, no memory, no space), it still closes its stream, and S3A stores the bytes so far,
 *       four of them, under the checkpoint's own name. No reader can open a table with such a file. Delta is
 *       therefore told that partial writes are visible: it writes a checkpoint under another name and renames it when
 *       it is complete.
 * </ol>
 */
public class ConditionalCreateLogStore extends HadoopFileSystemLogStore {
  private static final int ATTEMPTS = 8;
  private static final int CONFLICT = 409;
  private static final int PRECONDITION_FAILED = 412;
  private static final long FIRST_WAIT_MS = 50;

  /** Created by Delta, with the session's configuration. */
  public ConditionalCreateLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    byte[] content = lines(actions);
    FileSystem files = path.getFileSystem(configuration);
    if (overwrite) {
      put(files.create(path, true), content);
    } else {
      create(files, path, content, false);
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return true;
  }

  /**
   * Create one object by a multipart upload, as S3A writes a commit that is larger than a part, under the same rules.
   * It is used for the proof at start-up: a store may honor the condition in one kind of request and not in the other.
   */
  public void createInParts(Path path, String content, Configuration configuration) throws IOException {
    create(path.getFileSystem(configuration), path, content.getBytes(StandardCharsets.UTF_8), true);
  }

  private static void create(FileSystem files, Path path, byte[] content, boolean inParts) throws IOException {
    for (int attempt = 1; ; attempt++) {
      try {
        put(conditional(files, path, inParts), content);
        return;
      } catch (IOException problem) {
        byte[] found = contentOf(files, path, problem);
        if (found != null && Arrays.equals(found, content)) {
          return;
        }
        if (found != null) {
          throw alreadyExists(path, problem);
        }
        if (attempt == ATTEMPTS || !isRefusal(problem)) {
          throw problem;
        }
        pause(attempt);
      }
    }
  }

  private static FSDataOutputStream conditional(FileSystem files, Path path, boolean inParts) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path);
    builder.must(CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
    if (inParts) {
      builder.must("fs.s3a.create.multipart", true);
    }
    try {
      return builder.build();
    } catch (IllegalArgumentException unknownOption) {
      throw new IOException(files.getUri() + " has no conditional create: " + unknownOption.getMessage(), unknownOption);
    }
  }

  /** The object appears when the stream is closed. After a failed write it must not: it would be a torn commit. */
  private static void put(FSDataOutputStream stream, byte[] content) throws IOException {
    try {
      stream.write(content);
    } catch (IOException | RuntimeException problem) {
      stream.abort();
      throw problem;
    }
    stream.close();
  }

  /** The object's current content; null if it does not exist. Throws {@code problem} if that is unknown. */
  private static byte[] contentOf(FileSystem files, Path path, IOException problem) throws IOException {
    try (FSDataInputStream stream = files.open(path)) {
      return stream.readAllBytes();
    } catch (FileNotFoundException absent) {
      return null;
    } catch (IOException second) {
      problem.addSuppressed(second);
      throw problem;
    }
  }

  private static boolean isRefusal(IOException problem) {
    for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
      if (cause instanceof AWSServiceIOException) {
        int status = ((AWSServiceIOException) cause).statusCode();
        return status == CONFLICT || status == PRECONDITION_FAILED;
      }
    }
    return false;
  }

  private static FileAlreadyExistsException alreadyExists(Path path, IOException problem) {
    FileAlreadyExistsException refusal = new FileAlreadyExistsException(path.toString());
    refusal.initCause(problem);
    return refusal;
  }

  private static void pause(int attempt) throws InterruptedIOException {
    long bound = FIRST_WAIT_MS << attempt;
    try {
      Thread.sleep(ThreadLocalRandom.current().nextLong(bound / 2, bound));
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("interrupted before a conditional write was tried again");
    }
  }

  private static byte[] lines(Iterator<String> actions) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      bytes.write(actions.next().getBytes(StandardCharsets.UTF_8));
      bytes.write('\n');
    }
    return bytes.toByteArray();
  }
}
