package io.github.kafkadeltaexpress;

import java.util.function.BiFunction;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;

/**
 * Delta's transaction, but for one thing: when its commit is due to have a checkpoint, it says so and goes on.
 *
 * <p>Delta would count all of the table's files for the commit's statistics, and then write the checkpoint, before the
 * commit returns. Who made the transaction asks {@link #checkpointIsDue} after the commit, and writes it elsewhere.
 *
 * <p>Compiled by Spark's own Janino when a loader starts (delta_loader/shell/checkpoints.py), which knows no generics.
 */
public final class LoadTransaction extends OptimisticTransaction {

  private volatile boolean due = false;

  /** At the newest version of a table. */
  public LoadTransaction(DeltaLog log, Option catalogTable) {
    super(log, catalogTable, Option.empty());
  }

  @Override
  public boolean isCheckpointNeeded(long version, Snapshot after) {
    due = super.isCheckpointNeeded(version, after);
    return false;
  }

  /** Whether Delta would have written one within the commit. */
  public boolean checkpointIsDue() {
    return due;
  }

  /** Begins transactions: a class that is loaded by name has no constructor that could be called by name. */
  public static final class Maker implements BiFunction {

    @Override
    public Object apply(Object log, Object catalogTable) {
      return new LoadTransaction((DeltaLog) log, (Option) catalogTable);
    }
  }
}
