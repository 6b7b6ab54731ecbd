package io.github.kafkadeltaexpress;

import static org.apache.spark.sql.functions.coalesce;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.not;
import static org.apache.spark.sql.functions.when;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.TryEval;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.ColumnWithDefaultExprUtils;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.actions.Metadata;
import org.apache.spark.sql.delta.constraints.CheckDeltaInvariant;
import org.apache.spark.sql.delta.constraints.Constraint;
import org.apache.spark.sql.delta.constraints.Constraints;
import org.apache.spark.sql.delta.constraints.DeltaInvariantCheckerExec;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Delta's own checks of a table's rows, as expressions over rows that are not written yet.
 *
 * <ol>
 *   <li>The checks are those that Delta's writer builds: NOT NULL at any depth, CHECK constraints, the lengths of CHAR
 *       and VARCHAR, staged values of generated columns; over the rows with their generated and default columns, as the
 *       writer makes them. Its expressions are evaluated unchanged, and a null does not pass, as in the writer.
 *   <li>A row for which a generated column cannot be computed is refused as well, without further checks. Each
 *       expression is tested with IS NULL; a null result of the test means that the expression failed. A null result
 *       of the expression itself is a value like any other.
 *   <li>A generated column that cannot be tested here (over columns that are not staged) is left to the write, which
 *       reports why it fails. Staged columns are not computed.
 * </ol>
 */
final class RowChecks {
  private static final String GENERATED = "delta.generationExpression";
  private static final String LENGTHS = "__CHAR_VARCHAR_STRING_LENGTH_CHECK__";

  private final SparkSession session;
  private final DeltaLog log;
  private final OptimisticTransaction table;
  private final String problem;

  /** The checks of a table; {@code problem} is the column with the reason why a row is refused. */
  RowChecks(SparkSession session, DeltaLog log, String problem) {
    this.session = session;
    this.log = log;
    this.table = log.startTransaction(Option.empty(), Option.empty());
    this.problem = problem;
  }

  /** The CHECK constraints' conditions in SQL. */
  static List<String> conditions(Metadata metadata, SparkSession session) {
    List<String> conditions = new ArrayList<>();
    for (Constraint constraint : CollectionConverters.asJava(Constraints.getAll(metadata, session))) {
      if (constraint instanceof Constraints.Check) {
        conditions.add(((Constraints.Check) constraint).expression().sql());
      }
    }
    return conditions;
  }

  /**
   * The rows that the table refuses: the kept columns, which the table may lack, and why. Null without checks.
   * {@code only}: limited to checks that use no other columns; null for all.
   */
  org.apache.spark.sql.Dataset<Row> failing(org.apache.spark.sql.Dataset<Row> rows, List<String> kept, Set<String> only) {
    org.apache.spark.sql.Dataset<Row> refused = null;
    Column notComputed = notComputed(rows);
    if (notComputed != null) {
      refused = only == null ? selected(rows, kept, notComputed) : null;
      rows = rows.where(notComputed.isNull());
    }
    StructType schema = table.metadata().schema();
    for (String name : kept) {
      if (!Arrays.asList(schema.fieldNames()).contains(name)) {
        schema = schema.add(rows.schema().apply(name)); // otherwise Delta would leave it out
      }
    }
    var made =
        ColumnWithDefaultExprUtils.addDefaultExprsOrReturnConstraints(
            log, table.protocol(), ((Dataset<Row>) rows).queryExecution(), schema, rows, false);
    Column failed = null;
    for (CheckDeltaInvariant check : checks(made._1(), made._2())) {
      if (only == null || only.containsAll(columnsOf(check))) {
        failed = failed == null ? failed(check) : coalesce(failed, failed(check));
      }
    }
    if (failed == null) {
      return refused;
    }
    org.apache.spark.sql.Dataset<Row> checked = selected(made._1(), kept, failed);
    return refused == null ? checked : refused.unionByName(checked);
  }

  private org.apache.spark.sql.Dataset<Row> selected(
      org.apache.spark.sql.Dataset<Row> rows, List<String> kept, Column reason) {
    List<Column> columns = new ArrayList<>();
    kept.forEach(name -> columns.add(col("`" + name.replace("`", "``") + "`")));
    columns.add(reason.as(problem));
    return rows.select(columns.toArray(new Column[0])).where(col(problem).isNotNull());
  }

  /** Why one of the table's generated columns fails on a row (null: none does); null if none can fail (rule 2). */
  private Column notComputed(org.apache.spark.sql.Dataset<Row> rows) {
    Column reason = null;
    for (StructField field : table.metadata().schema().fields()) {
      if (!field.metadata().contains(GENERATED) || Arrays.asList(rows.columns()).contains(field.name())) {
        continue;
      }
      String expression = field.metadata().getString(GENERATED);
      Column fails;
      try {
        Expression parsed = session.sessionState().sqlParser().parseExpression("(" + expression + ") IS NULL");
        fails = tried(parsed).isNull();
        rows.select(fails);
      } catch (AnalysisException error) {
        continue; // rule 3
      }
      Column known =
          when(fails, lit("the generated column " + field.name() + " cannot be computed: " + expression));
      reason = reason == null ? known : coalesce(reason, known);
    }
    return reason;
  }

  private List<CheckDeltaInvariant> checks(org.apache.spark.sql.Dataset<Row> rows, Seq<Constraint> more) {
    List<Constraint> all = new ArrayList<>(CollectionConverters.asJava(Constraints.getAll(table.metadata(), session)));
    all.addAll(CollectionConverters.asJava(more));
    var output = ((Dataset<Row>) rows).queryExecution().analyzed().output();
    return CollectionConverters.asJava(DeltaInvariantCheckerExec.buildInvariantChecks(output, Json.seq(all), session));
  }

  private static List<String> columnsOf(CheckDeltaInvariant check) {
    List<String> names = new ArrayList<>();
    CollectionConverters.asJava(check.child().references().toSeq()).forEach(attribute -> names.add(attribute.name()));
    return names;
  }

  /** A check that cannot be computed (a division by zero, a text that is not a number) does not pass either. */
  private static Column failed(CheckDeltaInvariant check) {
    Column column = tried(check.child());
    if (!(check.constraint() instanceof Constraints.Check)) {
      String name = ((Constraints.NotNull) check.constraint()).column().mkString(".");
      return when(column.isNull(), lit(name + " is null, and the column is NOT NULL"));
    }
    Constraints.Check constraint = (Constraints.Check) check.constraint();
    String condition = constraint.expression().sql();
    String reason =
        constraint.name().equals(LENGTHS)
            ? "a text is too long: " + condition
            : "the constraint " + constraint.name() + " fails or cannot be computed: " + condition;
    return when(not(coalesce(column, lit(false))), lit(reason));
  }

  private static Column tried(Expression expression) {
    return ExpressionUtils.column(new TryEval(expression));
  }
}
