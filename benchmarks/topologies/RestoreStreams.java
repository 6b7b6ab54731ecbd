// How long Kafka Streams takes to restore a store: java … RestoreStreams <servers> <topic> <entries> <folder>
// A table of the topic is filled and left; another instance then restores it from its changelog, into memory, and
// prints for how many milliseconds it did.

import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.Stores;

public final class RestoreStreams {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], topic = arguments[1];
        long entries = Long.parseLong(arguments[2]);
        Path folder = Path.of(arguments[3]);
        String application = "restore-" + System.nanoTime();
        CountDownLatch filled = new CountDownLatch(1), restored = new CountDownLatch(1);
        AtomicLong seen = new AtomicLong(), began = new AtomicLong();
        try (KafkaStreams first = streams(servers, topic, application, folder.resolve("first"), () -> {
            if (seen.incrementAndGet() == entries) filled.countDown();
        })) {
            first.start();
            filled.await();
            first.close(Duration.ofMinutes(1));
        }
        try (KafkaStreams second = streams(servers, topic, application, folder.resolve("second"), () -> {})) {
            second.setGlobalStateRestoreListener(new StateRestoreListener() {
                @Override
                public void onRestoreStart(TopicPartition partition, String store, long start, long end) {
                    began.set(System.nanoTime());
                }

                @Override
                public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}

                @Override
                public void onRestoreEnd(TopicPartition partition, String store, long total) {
                    if (total < entries) throw new IllegalStateException(total + " entries were restored");
                    System.out.println((System.nanoTime() - began.get()) / 1_000_000);
                    restored.countDown();
                }
            });
            second.start();
            restored.await();
            second.close(Duration.ofMinutes(1));
        }
    }

    private static KafkaStreams streams(
        String servers, String topic, String application, Path folder, Runnable each) {
        StreamsBuilder builder = new StreamsBuilder();
        builder
            .stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
            .toTable(Materialized.<String, String>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()))
            .toStream()
            .foreach((key, value) -> each.run());
        Properties found = new Properties();
        found.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        found.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, servers);
        found.put(StreamsConfig.STATE_DIR_CONFIG, folder.toString());
        found.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        found.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        found.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        found.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 5_000);
        found.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        // The first instance does not leave its group when it is closed: the second one waits for so long.
        found.put(StreamsConfig.consumerPrefix(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), 10_000);
        KafkaStreams made = new KafkaStreams(builder.build(), found);
        made.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            System.exit(1);
            return null;
        });
        return made;
    }
}
