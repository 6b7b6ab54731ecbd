package io.github.kafkadeltaexpress;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.delta.CommittedTransaction;
import org.apache.spark.sql.delta.DeltaConfigs;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.files.DelayedCommitProtocol;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.streaming.OutputMode;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Delta's own transaction, in which a load is committed.
 *
 * <ol>
 *   <li>Whatever commits in it commits a load: staged files, written ones and the txn actions of all of its Kafka
 *       partitions are in the same commit, under the load's operation and metadata. That holds for Delta's own commands,
 *       too, which {@link #merge} has run whole in this transaction.
 *   <li>App ids that are looked up count as read: Delta refuses the commit when another one moved any of them.
 *   <li>A checkpoint that is due may be left to the caller, which has it written in the background. Delta would count
 *       all of the table's files for the commit's statistics, and then write the checkpoint, before the commit returns.
 *   <li>It writes into folders with random names where values cannot name a folder, as Delta does with the table's
 *       property {@code delta.randomizeFilePrefixes}, which the table does not get. Rows that a command copies from the
 *       table have the values of the files that it has read.
 * </ol>
 */
public final class LoadTransaction extends OptimisticTransaction {
  private static final List<String> CHANGED_ROWS =
      List.of("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted");
  private static final Map<String, String> NO_TAGS = DeltaBridge.noTexts();

  private final DeltaBridge bridge;
  private final boolean defersCheckpoint;
  private final List<String> appIds = new ArrayList<>();
  private final List<Action> written = new ArrayList<>();

  private boolean randomFolders;
  private JsonNode load;
  private boolean committing;
  private volatile boolean checkpointIsDue;
  private Map<String, SQLMetric> commandMetrics;
  private long files;
  private long bytes;
  /** The transaction that a command was given last: it starts another one when it begins again. */
  private LoadTransaction current = this;

  LoadTransaction(DeltaBridge bridge, DeltaLog log, Option<Snapshot> snapshot, boolean defersCheckpoint) {
    super(log, Option.empty(), snapshot);
    this.bridge = bridge;
    this.defersCheckpoint = defersCheckpoint;
  }

  /** The table as this transaction sees it, with the versions of these app ids (rule 2). */
  public String state(String wanted) {
    return bridge.within(
        () -> {
          appIds.addAll(Json.texts(Json.read(wanted)));
          ObjectNode state = DeltaBridge.state(readVersion(), metadata(), protocol());
          Option<ObjectNode> known = DeltaBridge.checksumTransactions(snapshot());
          ObjectNode versions = state.putObject("transactions");
          for (String appId : appIds) {
            if (known.isEmpty()) {
              long version = bridge.states.fit(snapshot(), () -> txnVersion(appId));
              if (version >= 0) {
                versions.put(appId, version);
              }
            } else {
              readTxn().addOne(appId);
              if (known.get().has(appId)) {
                versions.set(appId, known.get().get(appId));
              }
            }
          }
          return state.toString();
        });
  }

  /** Makes it write into folders with random names (rule 4). */
  public void useRandomFolders() {
    randomFolders = true;
  }

  /** Writes rows to files of the table, to be committed; returns their actions as lines of the log. */
  public String write(Dataset<Row> rows) {
    return StateSessions.within(
        rows.sparkSession(),
        () -> {
          written.addAll(CollectionConverters.asJava(writeFiles(rows)));
          return Json.lines(written);
        });
  }

  /**
   * Commits a load, and returns the table's new version. It has {@code files} and {@code transactions}, as lines of the
   * log; {@code replaced}, lines that replace those of written files at the same paths; and what is in the commit's
   * information: {@code merges}, {@code app_id}, {@code metadata}.
   */
  public long commit(String load) {
    return bridge.within(
        () -> {
          this.load = Json.read(load);
          return (long) commitImpl(Json.seq(List.of()), null, false, NO_TAGS).get();
        });
  }

  /**
   * Runs a statement of SQL that changes this table by one command of Delta's, in the session of {@code source}. The
   * command runs in this transaction and commits the load with it. Returns the table's new version. {@code load} has
   * two more fields, which say what cannot be a folder's name: {@code escaped} letters, and the {@code longest_bytes}.
   */
  public long merge(Dataset<Row> source, String statement, String load) {
    this.load = Json.read(load);
    StateSessions.within(
        source.sparkSession(), () -> DeltaBridge.inTransaction(new Handover(), () -> source.sparkSession().sql(statement)));
    if (current.committed().isEmpty()) {
      throw new IllegalStateException("the statement did not commit in the transaction of the load");
    }
    return current.committed().get().committedVersion();
  }

  /** Whether a commit was begun, so that it may be in the log. */
  public boolean isCommitting() {
    return current.committing;
  }

  /** What a merge brought: the table's new files, their bytes, and the rows that were changed. */
  public String totals() {
    ObjectNode totals = Json.MAPPER.createObjectNode();
    long rows = 0;
    for (String name : CHANGED_ROWS) {
      rows += current.commandMetrics == null ? 0 : current.commandMetrics.apply(name).value();
    }
    return totals.put("files", current.files).put("rows", rows).put("size_bytes", current.bytes).toString();
  }

  /** The version whose checkpoint Delta would have written within the commit; -1 for none. */
  public long dueCheckpoint() {
    return current.checkpointIsDue ? current.committed().get().postCommitSnapshot().version() : -1;
  }

  /** Writes the checkpoint that was due after the commit, and cleans the log. */
  public void writeCheckpoint() {
    CommittedTransaction done = current.committed().get();
    bridge.within(
        () ->
            bridge.states.fit(
                done.postCommitSnapshot(),
                () -> {
                  done.deltaLog().checkpointAndCleanUpDeltaLog(done.postCommitSnapshot(), done.catalogTable());
                  return null;
                }));
  }

  @Override
  public boolean isCheckpointNeeded(long version, Snapshot after) {
    boolean due = super.isCheckpointNeeded(version, after);
    checkpointIsDue = due && defersCheckpoint;
    return due && !defersCheckpoint;
  }

  @Override
  public void registerSQLMetrics(SparkSession session, Map<String, SQLMetric> metrics) {
    if (metrics.contains(CHANGED_ROWS.get(0))) {
      commandMetrics = metrics;
    }
    super.registerSQLMetrics(session, metrics);
  }

  @Override
  public DelayedCommitProtocol getCommitter(Path folder) {
    if (!randomFolders && !hasReadLongValues()) {
      return super.getCommitter(folder);
    }
    Object length = DeltaConfigs.RANDOM_PREFIX_LENGTH().fromMetaData(metadata());
    return new DelayedCommitProtocol("delta", folder.toString(), Option.apply(length), deltaDataSubdir());
  }

  /** The load around what a command made (rule 1). A transaction without a load commits as Delta's own does. */
  @Override
  public Option<Object> commitImpl(
      Seq<Action> actions, DeltaOperations.Operation operation, boolean maySkip, Map<String, String> tags) {
    if (load == null) {
      return super.commitImpl(actions, operation, maySkip, tags);
    }
    List<Action> all = Json.actions(load.get("files"));
    java.util.Map<String, Action> replaced = new HashMap<>();
    for (AddFile file : Json.<AddFile>actions(load.get("replaced"))) {
      replaced.put(file.path(), file);
    }
    for (Action action : written) {
      all.add(action instanceof AddFile ? replaced.getOrDefault(((AddFile) action).path(), action) : action);
    }
    all.addAll(CollectionConverters.asJava(actions));
    for (Action action : all) {
      if (action instanceof AddFile) {
        files++;
        bytes += ((AddFile) action).size();
      }
    }
    all.addAll(Json.actions(load.get("transactions")));
    DeltaOperations.Operation loaded =
        new DeltaOperations.StreamingUpdate(
            load.get("merges").asBoolean() ? OutputMode.Update() : OutputMode.Append(),
            load.get("app_id").asText(),
            readVersion() + 1,
            Option.apply(load.get("metadata").asText()));
    committing = true;
    return super.commitImpl(Json.seq(all), loaded, false, tags);
  }

  private boolean hasReadLongValues() {
    if (load == null || metadata().partitionColumns().isEmpty()) {
      return false;
    }
    String escaped = load.get("escaped").asText();
    int longest = load.get("longest_bytes").asInt();
    for (AddFile file : Json.each(readFiles())) {
      for (String value : CollectionConverters.asJava(file.partitionValues()).values()) {
        if (value != null && bytesOf(value, escaped) > longest) {
          return true;
        }
      }
    }
    return false;
  }

  /** The bytes of a value in a folder's name (common/stage/data_files.py). */
  private static long bytesOf(String value, String escaped) {
    long more = value.chars().filter(letter -> escaped.indexOf(letter) >= 0).count();
    return value.getBytes(StandardCharsets.UTF_8).length + 2 * more;
  }

  private LoadTransaction again() {
    LoadTransaction other = new LoadTransaction(bridge, deltaLog(), Option.apply(snapshot()), defersCheckpoint);
    other.load = load;
    other.randomFolders = randomFolders;
    appIds.forEach(other.readTxn()::addOne);
    return other;
  }

  /**
   * Gives a command this transaction, and another one at the same version where it begins again because Spark lost its
   * copy of the source. What starts after the commit (a hook that compacts) has its own.
   */
  private final class Handover extends DeltaBridge.StartsTransactions {
    private boolean isGiven;

    @Override
    OptimisticTransaction next() {
      if (current.committing) {
        return null;
      }
      if (isGiven) {
        current = again();
      }
      isGiven = true;
      return current;
    }

    @Override
    boolean isOver() {
      return current.committing;
    }
  }
}
