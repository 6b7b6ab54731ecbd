// The work of `plans.py`, by Kafka Streams: java … BesideStreams <servers> <topic> <output> <plan> <messages> <folder>
// It ends when so many messages were processed, with everything produced and committed.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;

public final class BesideStreams {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration MINUTE = Duration.ofMinutes(1);

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], topic = arguments[1], output = arguments[2], plan = arguments[3];
        long messages = Long.parseLong(arguments[4]);
        CountDownLatch done = new CountDownLatch(1);
        AtomicLong seen = new AtomicLong();
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> texts = builder
            .stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
            .peek((key, value) -> {
                if (seen.incrementAndGet() == messages) done.countDown();
            });
        KStream<String, String> made = plan.equals("windowed") ? windowed(texts) : mapped(texts);
        made.to(output, Produced.with(Serdes.String(), Serdes.String()));
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings(servers, arguments[5]))) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                System.exit(1);
                return null;
            });
            streams.start();
            done.await();
            streams.close(Duration.ofMinutes(1));
        }
    }

    private static KStream<String, String> mapped(KStream<String, String> texts) {
        return texts
            .mapValues(BesideStreams::parsed)
            .filter((key, value) -> value.get("status").asInt() < 400)
            .mapValues(value -> {
                ObjectNode row = JSON.createObjectNode();
                row.put("session_id", value.get("session_id").asText());
                row.put("status", value.get("status").asInt() / 100);
                row.put("path", value.get("url").asText().substring(23));
                return row.toString();
            });
    }

    private static KStream<String, String> windowed(KStream<String, String> texts) {
        return texts
            .mapValues(BesideStreams::parsed)
            .groupByKey(org.apache.kafka.streams.kstream.Grouped.with(Serdes.String(), new JsonSerde()))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(MINUTE))
            .count(Materialized.<String, Long>as(Stores.inMemoryWindowStore("counts", MINUTE, MINUTE, false))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .map((window, count) -> {
                ObjectNode row = JSON.createObjectNode();
                row.put("key", window.key());
                row.put("start_ms", window.window().start());
                row.put("count", count);
                return org.apache.kafka.streams.KeyValue.pair(window.key(), row.toString());
            });
    }

    private static JsonNode parsed(String text) {
        try {
            return JSON.readTree(text);
        } catch (Exception error) {
            throw new IllegalArgumentException(error);
        }
    }

    private static Properties settings(String servers, String folder) {
        Properties found = new Properties();
        found.put(StreamsConfig.APPLICATION_ID_CONFIG, "benchmark-" + System.nanoTime());
        found.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        found.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        found.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        found.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        // Each update goes out, as ours do; and commits are as far apart as our flushes may be.
        found.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        found.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 30_000);
        found.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 120_000);
        found.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return found;
    }

    private static final class JsonSerde extends Serdes.WrapperSerde<JsonNode> {
        JsonSerde() {
            super(
                (topic, value) -> value.toString().getBytes(java.nio.charset.StandardCharsets.UTF_8),
                (topic, data) -> parsed(new String(data, java.nio.charset.StandardCharsets.UTF_8)));
        }
    }
}
