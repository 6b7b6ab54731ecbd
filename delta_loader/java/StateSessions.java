package io.github.kafkadeltaexpress;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * How many parts a table's state is built in.
 *
 * <ol>
 *   <li>Delta reads the last checkpoint and the commits after it, shuffles them by path, and has each part's files as
 *       objects in the heap at once. The memory is therefore bounded by the size of a part, and not by the size of the
 *       table.
 *   <li>A local session has few parts (delta_loader/spark/session.py), because each costs some hundredths of a second;
 *       a table with many files gets more, in another session with another setting. Delta uses the thread's active
 *       session.
 *   <li>A setting in the user's {@code loader.spark} is left as it is.
 * </ol>
 */
final class StateSessions {
  private static final String PARTS = "spark.databricks.delta.snapshotPartitions";
  private static final int MOST_PARTS = 512;
  private static final long BYTES_OF_A_FILE = 100;
  /** Per file in a checkpoint and in the commits after it, if the number of files is not known otherwise. */
  private static final long BYTES_OF_A_LINE = 400;

  private final SparkSession base;
  private final int fewest;
  private final long filesOfAPart;
  private final boolean ours;
  private final Map<Integer, SparkSession> sessions = new ConcurrentHashMap<>();

  StateSessions(SparkSession base, int fewest, long filesOfAPart) {
    this.base = base;
    this.fewest = fewest;
    this.filesOfAPart = filesOfAPart;
    this.ours = base.conf().getOption(PARTS).contains(String.valueOf(fewest));
  }

  /** Does work with {@code session} as the thread's active one. */
  static <T> T within(SparkSession session, Supplier<T> work) {
    Option<SparkSession> before = SparkSession.getActiveSession();
    SparkSession.setActiveSession(session);
    try {
      return work.get();
    } finally {
      if (before.isDefined()) {
        SparkSession.setActiveSession(before.get());
      } else {
        SparkSession.clearActiveSession();
      }
    }
  }

  /** Does work on a table's state in the session for its size. */
  <T> T fit(Snapshot snapshot, Supplier<T> work) {
    int parts = ours ? partsFor(filesOf(snapshot)) : fewest;
    return within(parts == fewest ? base : sessions.computeIfAbsent(parts, this::session), work);
  }

  /** Sets the base session itself, which must not be shared, to the size of a table's state. */
  void setFor(Snapshot snapshot) {
    if (ours) {
      base.conf().set(PARTS, String.valueOf(partsFor(filesOf(snapshot))));
    }
  }

  /** A power of two, to limit the number of sessions. */
  private int partsFor(long files) {
    int parts = fewest;
    while (parts < MOST_PARTS && parts * filesOfAPart < files) {
      parts *= 2;
    }
    return parts;
  }

  private static long filesOf(Snapshot snapshot) {
    if (snapshot.checksumOpt().isDefined()) {
      return snapshot.checksumOpt().get().numFiles();
    }
    long bytes =
        CollectionConverters.asJava(snapshot.logSegment().deltas()).stream().mapToLong(commit -> commit.getLen()).sum();
    long checkpointed = snapshot.checkpointProvider().effectiveCheckpointSizeInBytes();
    return checkpointed / BYTES_OF_A_FILE + bytes / BYTES_OF_A_LINE;
  }

  private SparkSession session(int parts) {
    SparkSession session = base.newSession();
    session.conf().set(PARTS, String.valueOf(parts));
    return session;
  }
}
