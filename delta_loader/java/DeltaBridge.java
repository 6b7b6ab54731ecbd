package io.github.kafkadeltaexpress;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaOperations;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.SnapshotDescriptor;
import org.apache.spark.sql.delta.TransactionExecutionObserver;
import org.apache.spark.sql.delta.actions.Action;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.actions.Protocol;
import org.apache.spark.sql.delta.actions.SetTransaction;
import org.apache.spark.sql.delta.skipping.clustering.ClusteredTableUtils;
import org.apache.spark.sql.delta.skipping.clustering.ClusteringColumnInfo;
import org.apache.spark.sql.delta.skipping.clustering.temp.ClusterBySpec;
import org.apache.spark.sql.delta.util.FileNames;
import org.apache.spark.sql.functions;
import scala.Function0;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * All that the loader asks of Delta beyond its public API, in one Spark session; JSON in and out.
 *
 * <ol>
 *   <li>Nothing is decided here: Python plans, and asks for one step at a time.
 *   <li>Delta's private API is compiled against, never called by name from Python: a Delta that lacks something fails
 *       the build, and not a load.
 *   <li>Each method makes its session the thread's active one, which Delta asks for its settings, and restores the
 *       thread's own.
 * </ol>
 */
public final class DeltaBridge {
  final StateSessions states;
  private final SparkSession session;

  /** {@code fewestParts} is how many parts a small table's state is built in, {@code filesOfAPart} how large one is. */
  public DeltaBridge(SparkSession session, int fewestParts, long filesOfAPart) {
    this.session = session;
    this.states = new StateSessions(session, fewestParts, filesOfAPart);
  }

  /** Whether Java answers. */
  public boolean isAlive() {
    return true;
  }

  /** A table's newest state; null where there is no table. */
  public String state(String url) {
    return within(
        () -> {
          Snapshot snapshot = newest(url);
          if (snapshot.version() < 0) {
            return null;
          }
          ObjectNode state = state(snapshot.version(), snapshot.metadata(), snapshot.protocol());
          state.set("transactions", transactions(snapshot));
          return state.toString();
        });
  }

  /** A table's newest version; -1 where there is no table. */
  public long version(String url) {
    return within(() -> newest(url).version());
  }

  /** The columns that a table is clustered by. */
  public String clusteredBy(String url) {
    return within(
        () -> Json.texts(ClusteringColumnInfo.extractLogicalNames(log(url).unsafeVolatileSnapshot())).toString());
  }

  /** A commit of a table's log as two texts, its first line and the rest; null where it is not there. */
  public List<String> commit(String url, long version) {
    return within(
        () -> {
          DeltaLog log = log(url);
          Path path = FileNames.unsafeDeltaFile(log.logPath(), version);
          try {
            List<String> lines = CollectionConverters.asJava(log.store().read(path, log.newDeltaHadoopConf()));
            String first = lines.isEmpty() ? "" : lines.get(0);
            return List.of(first, lines.stream().skip(1).collect(Collectors.joining("\n")));
          } catch (Exception error) {
            if (error instanceof FileNotFoundException) {
              return null;
            }
            throw error;
          }
        });
  }

  /** Creates an empty table with this metadata, by a commit of its own; does nothing where there is a table. */
  public void create(String url, String table) {
    within(
        () -> {
          JsonNode asked = Json.read(table);
          OptimisticTransaction transaction = log(url).startTransaction(Option.empty(), Option.empty());
          if (transaction.readVersion() >= 0) {
            return null;
          }
          transaction.updateMetadataForNewTable(Json.action(asked));
          List<Action> actions = new ArrayList<>();
          Option<Seq<String>> names = Option.empty();
          if (asked.hasNonNull("clusterBy")) {
            ArrayNode columns = (ArrayNode) asked.get("clusterBy");
            Option<ClusterBySpec> layout = Option.apply(ClusterBySpec.fromProperty(paths(columns)));
            actions.addAll(
                CollectionConverters.asJava(ClusteredTableUtils.getDomainMetadataFromTransaction(layout, transaction)));
            names = Option.apply(Json.seq(Json.texts(columns)));
          }
          transaction.commit(
              Json.seq(actions), new DeltaOperations.CreateTable(transaction.metadata(), false, false, names));
          return null;
        });
  }

  /** Begins a load's transaction at the newest version. */
  public LoadTransaction begin(String url, boolean defersCheckpoint) {
    return within(() -> new LoadTransaction(this, log(url), Option.empty(), defersCheckpoint));
  }

  /** The rows of files below {@code root}, which no log names; metadata and files as lines of a log. */
  public Dataset<Row> rows(String root, String staged) {
    return within(
        () -> {
          JsonNode asked = Json.read(staged);
          List<AddFile> files = Json.actions(asked.get("files"));
          StagedFiles staging = new StagedFiles(log(root), Json.action(asked.get("metadata")));
          return (Dataset<Row>) staging.deltaLog().createDataFrame(staging, Json.seq(files), false, Option.empty());
        });
  }

  /** The CHECK constraints of a table, as conditions in SQL. */
  public String conditions(String url) {
    return within(
        () -> {
          ArrayNode conditions = Json.MAPPER.createArrayNode();
          RowChecks.conditions(newest(url).metadata(), session).forEach(conditions::add);
          return conditions.toString();
        });
  }

  /**
   * Those rows that a table refuses: their columns of {@code kept}, and why, in a column {@code problem}; null where it
   * checks none. {@code only}: limited to checks that use no other columns.
   */
  public org.apache.spark.sql.Dataset<Row> violations(String url, Dataset<Row> rows, String asked) {
    return within(
        () -> {
          JsonNode given = Json.read(asked);
          JsonNode only = given.get("only");
          return new RowChecks(session, log(url), given.get("problem").asText())
              .failing(rows, Json.texts(given.get("kept")), only.isNull() ? null : new HashSet<>(Json.texts(only)));
        });
  }

  /**
   * Saves rows with options of Delta's writer, instead of those that {@code replaceWhere} names, if it is one of them:
   * an append-only table refuses to replace even where there is nothing. With {@code randomFolders} into folders with
   * random names.
   */
  public void save(String url, Dataset<Row> rows, String options, boolean randomFolders) {
    within(
        () -> {
          java.util.Map<String, String> given = new HashMap<>();
          Json.read(options).properties().forEach(one -> given.put(one.getKey(), one.getValue().asText()));
          LoadTransaction transaction = new LoadTransaction(this, log(url), Option.empty(), false);
          if (randomFolders) {
            transaction.useRandomFolders();
          }
          return inTransaction(
              new Once(transaction),
              () -> {
                SaveMode mode = given.containsKey("replaceWhere") ? SaveMode.Overwrite : SaveMode.Append;
                rows.write().format("delta").mode(mode).options(given).save(url);
                return null;
              });
        });
  }

  /** From now on, sets this session, which must not be shared, to the size of a table's state. */
  public void fitSession(String url) {
    within(
        () -> {
          states.setFor(newest(url));
          return null;
        });
  }

  /** Writes a checkpoint of a table's newest version, and cleans its log. */
  public void checkpoint(String url) {
    within(
        () -> {
          // Its own `checkpoint` logs a failure and returns.
          log(url).checkpointAndCleanUpDeltaLog(newest(url), Option.empty());
          return null;
        });
  }

  /**
   * Computes statistics for files that have none, by a commit that changes nothing else. They come from Delta's own
   * collector. The files count as read, so Delta refuses the commit when another one removed one of them in the
   * meantime; otherwise it would reappear. Files are identified by their names, which are unique; those with a deletion
   * vector are left alone, as Delta itself does.
   */
  public void addStatistics(String url, int mostFiles, long mostBytes) {
    within(
        () -> {
          DeltaLog log = log(url);
          OptimisticTransaction transaction = log.startTransaction(Option.empty(), Option.empty());
          List<AddFile> chosen = new ArrayList<>();
          long bytes = 0;
          var bare = transaction.snapshot().allFiles().where("stats IS NULL AND deletionVector IS NULL");
          for (AddFile file : bare.limit(mostFiles).collectAsList()) {
            bytes += file.size();
            if (!chosen.isEmpty() && bytes > mostBytes) {
              break;
            }
            chosen.add(file);
          }
          transaction.trackFilesRead(Json.seq(chosen));
          var rows = log.createDataFrame(transaction.snapshot(), Json.seq(chosen), false, Option.empty());
          var collected =
              rows.groupBy(functions.col("_metadata.file_path"))
                  .agg(functions.to_json(transaction.statsCollector()));
          java.util.Map<String, String> statistics = new HashMap<>();
          for (Row row : collected.collectAsList()) {
            statistics.put(nameOf(row.getString(0)), row.getString(1));
          }
          List<Action> named = new ArrayList<>();
          for (AddFile file : chosen) {
            String found = statistics.get(nameOf(file.path()));
            if (found != null) {
              ObjectNode line = (ObjectNode) Json.read(file.json());
              ((ObjectNode) line.get("add")).put("stats", found).put("dataChange", false);
              named.add(Json.action(line));
            }
          }
          if (!named.isEmpty()) {
            transaction.commit(Json.seq(named), new DeltaOperations.ComputeStats(Json.seq(List.of())));
          }
          return null;
        });
  }

  <T> T within(Supplier<T> work) {
    return StateSessions.within(session, work);
  }

  static Map<String, String> noTexts() {
    return scala.collection.immutable.Map$.MODULE$.empty();
  }

  /** Does work whose transactions {@code starts} gives to it. */
  static <T> T inTransaction(StartsTransactions starts, Function0<T> work) {
    @SuppressWarnings("unchecked")
    T done = (T) TransactionExecutionObserver.withObserver(starts, (Function0<Object>) (Function0<?>) work);
    return done;
  }

  static ObjectNode state(long version, Metadata metadata, Protocol protocol) {
    ObjectNode state = Json.MAPPER.createObjectNode();
    state.put("version", version);
    state.put("table_id", metadata.id());
    state.put("schema", metadata.schemaString());
    state.set("partition_by", Json.texts(metadata.partitionColumns()));
    ObjectNode properties = state.putObject("properties");
    CollectionConverters.asJava(metadata.configuration()).forEach(properties::put);
    state.put("reader_version", protocol.minReaderVersion());
    state.put("writer_version", protocol.minWriterVersion());
    ArrayNode features = state.putArray("features");
    CollectionConverters.asJava(protocol.readerAndWriterFeatureNames()).forEach(features::add);
    return state;
  }

  /**
   * The txn actions by app id, as the version's checksum file has them; none where it does not.
   *
   * <p>Delta's own {@code Snapshot.transactions} builds the whole state, by Spark jobs over every file that the table
   * has, for a few numbers. The checksum has them too: each Delta commit derives it from the previous one, and leaves
   * them out where it cannot be sure (a retention of txn actions, a commit by another program that writes no checksum,
   * too many). Only then is the state read, and the next commit has them again.
   */
  static Option<ObjectNode> checksumTransactions(Snapshot snapshot) {
    if (snapshot.checksumOpt().isEmpty() || snapshot.checksumOpt().get().setTransactions().isEmpty()) {
      return Option.empty();
    }
    ObjectNode versions = Json.MAPPER.createObjectNode();
    for (SetTransaction one : CollectionConverters.asJava(snapshot.checksumOpt().get().setTransactions().get())) {
      versions.put(one.appId(), one.version());
    }
    return Option.apply(versions);
  }

  private ObjectNode transactions(Snapshot snapshot) {
    Option<ObjectNode> known = checksumTransactions(snapshot);
    if (known.isDefined()) {
      return known.get();
    }
    ObjectNode versions = Json.MAPPER.createObjectNode();
    CollectionConverters.asJava(states.fit(snapshot, snapshot::transactions))
        .forEach((appId, version) -> versions.put(appId, (long) version));
    return versions;
  }

  private DeltaLog log(String url) {
    return DeltaLog.forTable(session, url);
  }

  private Snapshot newest(String url) {
    return log(url).update(false, Option.empty(), Option.empty());
  }

  /** A file's own name, regardless of how its path is spelled. */
  private static String nameOf(String path) {
    String name = path.substring(path.lastIndexOf('/') + 1);
    return URLDecoder.decode(name.replace("+", "%2B"), StandardCharsets.UTF_8);
  }

  private static String paths(ArrayNode columns) {
    ArrayNode paths = Json.MAPPER.createArrayNode();
    for (JsonNode column : columns) {
      ArrayNode path = paths.addArray();
      for (String part : column.asText().split("\\.")) {
        path.add(part);
      }
    }
    return paths.toString();
  }

  /** Files that no log names, as a table. */
  private static final class StagedFiles implements SnapshotDescriptor {
    private final DeltaLog log;
    private final Metadata metadata;
    private final Protocol protocol;

    private StagedFiles(DeltaLog log, Metadata metadata) {
      this.log = log;
      this.metadata = metadata;
      this.protocol = Protocol.forNewTable(SparkSession.active(), Option.apply(metadata));
    }

    @Override
    public DeltaLog deltaLog() {
      return log;
    }

    @Override
    public long version() {
      return -1;
    }

    @Override
    public Metadata metadata() {
      return metadata;
    }

    @Override
    public Protocol protocol() {
      return protocol;
    }

    // Of the next two, each supported Delta asks for none, one or both.
    public Path logPath() {
      return log.logPath();
    }

    public Path dataPath() {
      return log.dataPath();
    }

    @Override
    public Option<Object> numOfFilesIfKnown() {
      return Option.empty();
    }

    @Override
    public Option<Object> sizeInBytesIfKnown() {
      return Option.empty();
    }
  }

  /** Gives a command of Delta's the transactions that it starts; it has no other way to run in one that was begun. */
  abstract static class StartsTransactions implements TransactionExecutionObserver {
    private Option<TransactionExecutionObserver> next = Option.empty();

    /** The transaction to start; null for one of its own. */
    abstract OptimisticTransaction next();

    /** Whether the command is done with what it was given, so that others may commit: its hooks. */
    abstract boolean isOver();

    @Override
    public OptimisticTransaction startingTransaction(Function0<OptimisticTransaction> start) {
      OptimisticTransaction given = next();
      return given == null ? start.apply() : given;
    }

    @Override
    public <T> T preparingCommit(Function0<T> work) {
      return work.apply();
    }

    @Override
    public TransactionExecutionObserver createChild() {
      return this;
    }

    @Override
    public Option<TransactionExecutionObserver> nextObserver() {
      return next;
    }

    @Override
    public void nextObserver_$eq(Option<TransactionExecutionObserver> observer) {
      next = observer;
    }

    /** A transaction that was given is not asked here: it began before. */
    @Override
    public void beginDoCommit() {
      if (!isOver()) {
        throw new IllegalStateException("Delta would commit outside of the transaction that it was given");
      }
    }

    @Override
    public void beginBackfill() {}

    @Override
    public void beginPostCommit() {}

    @Override
    public void transactionCommitted() {}

    @Override
    public void transactionAborted() {}
  }

  private static final class Once extends StartsTransactions {
    private OptimisticTransaction transaction;

    private Once(OptimisticTransaction transaction) {
      this.transaction = transaction;
    }

    @Override
    OptimisticTransaction next() {
      OptimisticTransaction given = transaction;
      transaction = null;
      return given;
    }

    @Override
    boolean isOver() {
      return transaction == null;
    }
  }
}
