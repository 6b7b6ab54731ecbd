package io.github.kafkadeltaexpress;

import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import scala.Option;

/**
 * Delta's transaction with one difference: when its commit is due to have a checkpoint, it records that and continues.
 *
 * <p>Delta would count all of the table's files for the commit's statistics, and then write the checkpoint, before the
 * commit returns. The code that made the transaction calls {@link #checkpointIsDue} after the commit, and has the
 * checkpoint written in the background.
 */
public final class LoadTransaction extends OptimisticTransaction {

  private volatile boolean due = false;

  /** Starts at the newest version of a table. */
  public LoadTransaction(DeltaLog log, Option<CatalogTable> catalogTable) {
    super(log, catalogTable, Option.empty());
  }

  @Override
  public boolean isCheckpointNeeded(long version, Snapshot after) {
    due = super.isCheckpointNeeded(version, after);
    return false;
  }

  /** Whether Delta would have written a checkpoint within the commit. */
  public boolean checkpointIsDue() {
    return due;
  }
}
