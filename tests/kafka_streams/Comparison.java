import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KeyValueMapper;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Predicate;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindowedKStream;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindowedKStream;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.ValueMapper;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs cases of tests/kafka_streams/cases.py in Kafka Streams' own test driver: an array of cases on standard input,
 * and on standard output, for each case and each of its inputs, what came out: topic, key, value and time.
 */
@SuppressWarnings({"unchecked", "rawtypes"})
public final class Comparison {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(final String[] arguments) throws Exception {
        final ArrayNode answers = JSON.createArrayNode();
        for (final JsonNode given : JSON.readTree(System.in)) {
            answers.add(new Comparison(given).run());
        }
        JSON.writeValue(System.out, answers);
    }

    private final JsonNode given;
    private final StreamsBuilder builder = new StreamsBuilder();
    private final Map<String, Object> made = new HashMap<>();
    private final TreeSet<String> sinks = new TreeSet<>();
    private final TreeSet<String> sources = new TreeSet<>();

    private Duration retention = null;

    private Comparison(final JsonNode given) {
        this.given = given;
    }

    private ArrayNode run() {
        for (final JsonNode step : given.get("plan")) {
            final Object result = make(step);
            if (result instanceof KStream[]) {
                final KStream[] branches = (KStream[]) result;
                for (int number = 0; number < branches.length; number++) {
                    made.put(step.get("id").asText() + number, branches[number]);
                }
            } else if (result != null) {
                made.put(step.get("id").asText(), result);
            }
        }
        final ArrayNode answers = JSON.createArrayNode();
        try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), properties(), Instant.ofEpochMilli(0))) {
            final Map<String, TestInputTopic<String, String>> inputs = new HashMap<>();
            final Map<String, TestOutputTopic<String, String>> outputs = new HashMap<>();
            for (final String topic : sources) {
                inputs.put(topic, driver.createInputTopic(topic, new StringSerializer(), new StringSerializer()));
            }
            for (final String topic : sinks) {
                outputs.put(topic, driver.createOutputTopic(topic, new StringDeserializer(), new StringDeserializer()));
            }
            for (final JsonNode input : given.get("inputs")) {
                final TestInputTopic<String, String> into = inputs.get(input.get(0).asText());
                into.pipeInput(text(input.get(1)), text(input.get(2)), input.get(3).asLong());
                final ArrayNode came = answers.addArray();
                for (final String topic : sinks) {
                    for (final TestRecord<String, String> record : outputs.get(topic).readRecordsToList()) {
                        came.addArray().add(topic).add(record.key()).add(record.value()).add(record.timestamp());
                    }
                }
            }
        }
        return answers;
    }

    private Properties properties() {
        final Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, "comparison");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "nowhere:1");
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        final Class<?> stores = "rocksdb".equals(given.path("stores").asText())
            ? BuiltInDslStoreSuppliers.RocksDBDslStoreSuppliers.class
            : BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class;
        properties.put(StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG, stores);
        // What an outer join has to give on is looked for at most once a second of the clock: here, with each record.
        properties.put(StreamsConfig.InternalConfig.EMIT_INTERVAL_MS_KSTREAMS_OUTER_JOIN_SPURIOUS_RESULTS_FIX, 0L);
        return properties;
    }

    private Object make(final JsonNode step) {
        final Object of = step.has("of") ? made.get(step.get("of").asText()) : null;
        final Object with = step.has("with") ? made.get(step.get("with").asText()) : null;
        final String function = step.path("function").asText();
        switch (step.get("op").asText()) {
            case "stream":
                sources.add(step.get("topic").asText());
                return builder.stream(step.get("topic").asText(), Consumed.with(Serdes.String(), Serdes.String()));
            case "table":
                sources.add(step.get("topic").asText());
                return step.has("store")
                    ? builder.table(step.get("topic").asText(), Materialized.as(step.get("store").asText()))
                    : builder.table(step.get("topic").asText());
            case "filter":
                return of instanceof KTable ? tableFilter((KTable) of, step, function) : ((KStream) of).filter(predicate(function));
            case "filter_not":
                return of instanceof KTable ? ((KTable) of).filterNot(predicate(function)) : ((KStream) of).filterNot(predicate(function));
            case "map":
                return ((KStream<String, String>) of).map(pairs(function));
            case "map_values":
                return of instanceof KTable ? tableMap((KTable) of, step, function) : ((KStream) of).mapValues(values(function));
            case "flat_map":
                return ((KStream<String, String>) of).flatMap((key, value) -> {
                    final List<KeyValue<String, String>> all = new ArrayList<>();
                    for (final String letter : letters(value)) {
                        all.add(KeyValue.pair(letter, value));
                    }
                    return all;
                });
            case "flat_map_values":
                return ((KStream<String, String>) of).flatMapValues(Comparison::letters);
            case "select_key":
                return ((KStream<String, String>) of).selectKey((key, value) -> first(value));
            case "branch":
                return branches((KStream<String, String>) of, step);
            case "merge":
                return ((KStream) of).merge((KStream) with);
            case "group_by_key":
                return ((KStream<String, String>) of).groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
            case "group_by":
                return of instanceof KTable
                    ? ((KTable<Object, String>) of).groupBy((key, value) -> KeyValue.pair(first(value), value), Grouped.with(Serdes.String(), Serdes.String()))
                    : ((KStream<String, String>) of).groupBy((key, value) -> first(value), Grouped.with(Serdes.String(), Serdes.String()));
            case "windowed_by":
                return ((KGroupedStream<String, String>) of).windowedBy(
                    TimeWindows.ofSizeAndGrace(ms(step, "size"), ms(step, "grace")).advanceBy(ms(step, "advance")));
            case "sessions":
                // A millisecond more than by default, so that a session is found for as long as it may be taken in.
                retention = step.path("exact").asBoolean() ? null : ms(step, "gap").plus(ms(step, "grace")).plusMillis(1);
                return ((KGroupedStream<String, String>) of).windowedBy(
                    SessionWindows.ofInactivityGapAndGrace(ms(step, "gap"), ms(step, "grace")));
            case "count":
                return count(of);
            case "reduce":
                return reduce(of, step);
            case "aggregate":
                return aggregate(of, step);
            case "to_table":
                return ((KStream<String, String>) of).toTable();
            case "to_stream":
                return ((KTable) of).toStream();
            case "suppress":
                return step.has("limit")
                    ? ((KTable) of).suppress(Suppressed.untilTimeLimit(ms(step, "limit"), limited(step)))
                    : ((KTable) of).suppress(Suppressed.untilWindowCloses((Suppressed.StrictBufferConfig) BufferConfig.unbounded()));
            case "join":
            case "left_join":
            case "outer_join":
                return join(of, with, step);
            case "to":
                sinks.add(step.get("topic").asText());
                ((KStream) of).to(step.get("topic").asText(), Produced.with(anything(), anything()));
                return null;
            default:
                throw new IllegalArgumentException(step.toString());
        }
    }

    private static Object tableFilter(final KTable of, final JsonNode step, final String function) {
        return step.has("store")
            ? of.filter(predicate(function), Materialized.as(step.get("store").asText()))
            : of.filter(predicate(function));
    }

    private static Object tableMap(final KTable of, final JsonNode step, final String function) {
        return step.has("store")
            ? of.mapValues(values(function), Materialized.as(step.get("store").asText()))
            : of.mapValues(values(function));
    }

    private static BufferConfig limited(final JsonNode step) {
        return step.has("records") ? BufferConfig.maxRecords(step.get("records").asLong()) : BufferConfig.unbounded();
    }

    private static KStream[] branches(final KStream<String, String> of, final JsonNode step) {
        final Map<String, KStream<String, String>> found = new HashMap<>();
        var branched = of.split(org.apache.kafka.streams.kstream.Named.as(step.get("id").asText()));
        int number = 0;
        for (final JsonNode function : step.get("functions")) {
            branched = branched.branch(predicate(function.asText()), org.apache.kafka.streams.kstream.Branched.as("-" + number++));
        }
        if (step.path("default").asBoolean()) {
            found.putAll(branched.defaultBranch(org.apache.kafka.streams.kstream.Branched.as("-" + number++)));
        } else {
            found.putAll(branched.noDefaultBranch());
        }
        final KStream[] all = new KStream[number];
        for (int place = 0; place < number; place++) {
            all[place] = found.get(step.get("id").asText() + "-" + place);
        }
        return all;
    }

    private Object count(final Object of) {
        if (of instanceof TimeWindowedKStream) {
            return ((TimeWindowedKStream<String, String>) of).count();
        }
        if (of instanceof SessionWindowedKStream) {
            return ((SessionWindowedKStream<String, String>) of).count(retained(Materialized.with(Serdes.String(), Serdes.Long())));
        }
        return of instanceof KGroupedTable
            ? ((KGroupedTable<String, String>) of).count() : ((KGroupedStream<String, String>) of).count();
    }

    private Object reduce(final Object of, final JsonNode step) {
        if (of instanceof TimeWindowedKStream) {
            return ((TimeWindowedKStream<String, String>) of).reduce((one, two) -> unless(step, one + two));
        }
        if (of instanceof SessionWindowedKStream) {
            return ((SessionWindowedKStream<String, String>) of).reduce(
                (one, two) -> unless(step, one + two), retained(Materialized.with(Serdes.String(), Serdes.String())));
        }
        return of instanceof KGroupedTable
            ? ((KGroupedTable<String, String>) of).reduce((one, two) -> one + "+" + two, (one, two) -> one + "-" + two)
            : ((KGroupedStream<String, String>) of).reduce((one, two) -> unless(step, one + two));
    }

    private Object aggregate(final Object of, final JsonNode step) {
        final Materialized kept = Materialized.with(Serdes.String(), Serdes.String());
        if (of instanceof TimeWindowedKStream) {
            return ((TimeWindowedKStream<String, String>) of).aggregate(() -> "", (key, value, so) -> unless(step, so + "," + value), kept);
        }
        if (of instanceof SessionWindowedKStream) {
            return ((SessionWindowedKStream<String, String>) of).aggregate(
                () -> "", (key, value, so) -> unless(step, so + "," + value), (key, one, two) -> one + "|" + two, retained(kept));
        }
        if (of instanceof KGroupedTable) {
            return ((KGroupedTable<String, String>) of).aggregate(
                () -> "", (key, value, so) -> unless(step, so + "+" + value), (key, value, so) -> unless(step, so + "-" + value), kept);
        }
        return ((KGroupedStream<String, String>) of).aggregate(() -> "", (key, value, so) -> unless(step, so + "," + value), kept);
    }

    private Materialized retained(final Materialized kept) {
        return retention == null ? kept : kept.withRetention(retention);
    }

    private static Object join(final Object of, final Object with, final JsonNode step) {
        final ValueJoiner<Object, Object, String> both = (one, two) -> unless(step, one + "/" + two);
        final String op = step.get("op").asText();
        if (of instanceof KTable) {
            final Materialized kept = step.has("store") ? Materialized.as(step.get("store").asText()) : null;
            switch (op) {
                case "join":
                    return kept == null ? ((KTable) of).join((KTable) with, both) : ((KTable) of).join((KTable) with, both, kept);
                case "left_join":
                    return kept == null ? ((KTable) of).leftJoin((KTable) with, both) : ((KTable) of).leftJoin((KTable) with, both, kept);
                default:
                    return kept == null ? ((KTable) of).outerJoin((KTable) with, both) : ((KTable) of).outerJoin((KTable) with, both, kept);
            }
        }
        if (with instanceof KTable) {
            return op.equals("join") ? ((KStream) of).join((KTable) with, both) : ((KStream) of).leftJoin((KTable) with, both);
        }
        final JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(ms(step, "before"), ms(step, "grace")).after(ms(step, "after"));
        final StreamJoined kept = StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String());
        switch (op) {
            case "join":
                return ((KStream) of).join((KStream) with, both, windows, kept);
            case "left_join":
                return ((KStream) of).leftJoin((KStream) with, both, windows, kept);
            default:
                return ((KStream) of).outerJoin((KStream) with, both, windows, kept);
        }
    }

    private static Predicate<Object, Object> predicate(final String name) {
        switch (name) {
            case "even":
                return (key, value) -> value != null && value.toString().length() % 2 == 0;
            case "has_a":
                return (key, value) -> value != null && value.toString().contains("a");
            case "key_b":
                return (key, value) -> "b".equals(key);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static KeyValueMapper<String, String, KeyValue<String, String>> pairs(final String name) {
        switch (name) {
            case "swap":
                return (key, value) -> KeyValue.pair(value, key);
            case "mark":
                return (key, value) -> KeyValue.pair(key, value + "!");
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static ValueMapper<Object, Object> values(final String name) {
        switch (name) {
            case "twice":
                return value -> value == null ? null : value.toString() + value;
            case "no_a":
                return value -> value == null || value.toString().contains("a") ? null : value.toString();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static List<String> letters(final String value) {
        final List<String> all = new ArrayList<>();
        for (int place = 0; value != null && place < value.length(); place++) {
            all.add(value.substring(place, place + 1));
        }
        return all;
    }

    private static String unless(final JsonNode step, final String value) {
        return step.has("without") && value.contains(step.get("without").asText()) ? null : value;
    }

    private static String first(final String value) {
        return value == null || value.isEmpty() ? null : value.substring(0, 1);
    }

    private static String text(final JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    private static Duration ms(final JsonNode step, final String name) {
        return Duration.ofMillis(step.get(name).asLong());
    }

    private static Serde<Object> anything() {
        final Serializer<Object> written = (topic, data) -> data == null ? null : shown(data).getBytes(StandardCharsets.UTF_8);
        final Deserializer<Object> read = (topic, data) -> data == null ? null : new String(data, StandardCharsets.UTF_8);
        return Serdes.serdeFrom(written, read);
    }

    private static String shown(final Object data) {
        if (data instanceof Windowed) {
            final Windowed<?> windowed = (Windowed<?>) data;
            return windowed.key() + "@" + windowed.window().start() + "/" + windowed.window().end();
        }
        return data.toString();
    }
}
