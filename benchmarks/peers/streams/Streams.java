import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Properties;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * A secondary index over a topic of JSON documents in Kafka Streams: its peer in `benchmarks peers`.
 *
 * <p>Theory of operation: a store by document id has the indexed key that each document had last. A document is read
 * with a streaming parser (city and age alone), and its old and its new key go on as a removal and an entry: with one
 * store through a repartition topic of one partition, else straight into the store of their source partition. All
 * stores are RocksDB with a changelog topic, as Kafka Streams has them by default. A range is asked for over HTTP, and
 * merged from all stores in key order. Nothing here makes a range a cut of one moment.
 *
 * <p>Arguments: bootstrap servers, topic, its partitions, folder of the state, port, "one" or "each", threads.
 */
public final class Streams {
    private static final JsonFactory JSON = new JsonFactory();
    private static final byte[] HERE = {1};

    private final KafkaStreams streams;
    private final int stores;
    private final int tasks;
    private List<ReadOnlyKeyValueStore<byte[], byte[]>> opened = List.of();

    private Streams(String bootstrap, String topic, int partitions, String folder, boolean one, int threads) {
        stores = one ? 1 : partitions;
        tasks = one ? partitions + 1 : partitions;
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, threads);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        // It stands still while its topic is filled, and is not to lose its partitions by that.
        settings.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 1_700_000);
        settings.put(ConsumerConfig.MAX_POLL_INTERVAL_MS_CONFIG, 3_600_000);
        settings.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10_000);
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
                Stores.keyValueStoreBuilder(
                        Stores.persistentKeyValueStore("keys"), Serdes.ByteArray(), Serdes.ByteArray()));
        builder.addStateStore(
                Stores.keyValueStoreBuilder(
                        Stores.persistentKeyValueStore("entries"), Serdes.ByteArray(), Serdes.ByteArray()));
        KStream<byte[], byte[]> changes =
                builder.stream(topic, Consumed.with(Serdes.ByteArray(), Serdes.ByteArray())).process(Keys::new, "keys");
        if (one) {
            changes = changes.repartition(
                    Repartitioned.with(Serdes.ByteArray(), Serdes.ByteArray())
                            .withName("by-key")
                            .withNumberOfPartitions(1));
        }
        changes.process(Entries::new, "entries");
        streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
    }

    /** From a document to what changes in the index. */
    private static final class Keys implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], byte[]> keys;

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            keys = given.getStateStore("keys");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            byte[] id = record.key();
            byte[] now = record.value() == null ? null : keyOf(record.value(), id);
            byte[] before = keys.get(id);
            if (Arrays.equals(before, now)) {
                return;
            }
            if (before != null) {
                context.forward(record.withKey(before).withValue((byte[]) null));
            }
            keys.put(id, now);
            if (now != null) {
                context.forward(record.withKey(now).withValue(HERE));
            }
        }
    }

    /** What changes, into the store that ranges are read from. */
    private static final class Entries implements Processor<byte[], byte[], Void, Void> {
        private KeyValueStore<byte[], byte[]> entries;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            entries = context.getStateStore("entries");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            entries.put(record.key(), record.value());
        }
    }

    /** City, zero, age in two bytes, id: in the order of the bytes. */
    static byte[] key(byte[] city, int age, byte[] id) {
        byte[] made = Arrays.copyOf(city, city.length + 3 + id.length);
        made[city.length + 1] = (byte) (age >> 8);
        made[city.length + 2] = (byte) age;
        System.arraycopy(id, 0, made, city.length + 3, id.length);
        return made;
    }

    private static byte[] keyOf(byte[] document, byte[] id) {
        byte[] city = null;
        int age = -1;
        try (JsonParser parser = JSON.createParser(document)) {
            parser.nextToken();
            while ((city == null || age < 0) && parser.nextToken() == JsonToken.FIELD_NAME) {
                String name = parser.currentName();
                parser.nextToken();
                if (name.equals("city")) {
                    city = parser.getText().getBytes(StandardCharsets.UTF_8);
                } else if (name.equals("age")) {
                    age = parser.getIntValue();
                } else {
                    parser.skipChildren();
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return city == null || age < 0 ? null : key(city, age, id);
    }

    /** Whether all tasks are assigned and all stores can be read. */
    private synchronized boolean ready() {
        if (streams.state() != KafkaStreams.State.RUNNING) {
            return false;
        }
        int assigned = streams.metadataForLocalThreads().stream().mapToInt(one -> one.activeTasks().size()).sum();
        if (assigned != tasks) {
            return false;
        }
        if (opened.isEmpty()) {
            List<ReadOnlyKeyValueStore<byte[], byte[]>> found = new ArrayList<>();
            for (int partition = 0; partition < stores; partition++) {
                found.add(streams.store(
                        StoreQueryParameters.fromNameAndType(
                                        "entries", QueryableStoreTypes.<byte[], byte[]>keyValueStore())
                                .withPartition(partition)));
            }
            opened = found;
        }
        return true;
    }

    /** One of the stores that are merged: its next entry. */
    private record Head(KeyValue<byte[], byte[]> entry, KeyValueIterator<byte[], byte[]> rest) {}

    private String range(byte[] low, int limit) {
        PriorityQueue<Head> heads =
                new PriorityQueue<>(Comparator.comparing((Head head) -> head.entry().key, Arrays::compareUnsigned));
        List<KeyValueIterator<byte[], byte[]>> open = new ArrayList<>();
        StringBuilder rows = new StringBuilder("{\"rows\":[");
        try {
            for (ReadOnlyKeyValueStore<byte[], byte[]> store : opened) {
                KeyValueIterator<byte[], byte[]> iterator = store.range(low, null);
                open.add(iterator);
                if (iterator.hasNext()) {
                    heads.add(new Head(iterator.next(), iterator));
                }
            }
            for (int count = 0; count < limit && !heads.isEmpty(); count++) {
                Head head = heads.poll();
                row(rows.append(count == 0 ? "" : ","), head.entry().key);
                if (head.rest().hasNext()) {
                    heads.add(new Head(head.rest().next(), head.rest()));
                }
            }
        } finally {
            open.forEach(KeyValueIterator::close);
        }
        return rows.append("]}").toString();
    }

    private static void row(StringBuilder into, byte[] key) {
        int end = 0;
        while (key[end] != 0) {
            end++;
        }
        int age = (key[end + 1] & 0xFF) << 8 | key[end + 2] & 0xFF;
        into.append("{\"key\":[\"").append(new String(key, 0, end, StandardCharsets.UTF_8)).append("\",").append(age);
        into.append("],\"id\":\"");
        into.append(new String(key, end + 3, key.length - end - 3, StandardCharsets.UTF_8)).append("\"}");
    }

    private boolean has(byte[] key) {
        return opened.stream().anyMatch(store -> store.get(key) != null);
    }

    private long count() {
        long found = 0;
        for (ReadOnlyKeyValueStore<byte[], byte[]> store : opened) {
            try (KeyValueIterator<byte[], byte[]> all = store.all()) {
                for (; all.hasNext(); all.next()) {
                    found++;
                }
            }
        }
        return found;
    }

    private String answer(String path, Map<String, String> asked) {
        switch (path) {
            case "/ready":
                return String.valueOf(ready());
            case "/range":
                return range(asked.get("low").getBytes(StandardCharsets.UTF_8), Integer.parseInt(asked.get("limit")));
            case "/has":
                byte[] city = asked.get("city").getBytes(StandardCharsets.UTF_8);
                byte[] id = asked.get("id").getBytes(StandardCharsets.UTF_8);
                return String.valueOf(has(key(city, Integer.parseInt(asked.get("age")), id)));
            case "/count":
                return String.valueOf(count());
            default:
                throw new IllegalArgumentException(path);
        }
    }

    private void serve(HttpExchange exchange) throws IOException {
        int status = 200;
        byte[] body;
        try {
            Map<String, String> asked = new HashMap<>();
            String query = exchange.getRequestURI().getQuery();
            for (String part : query == null ? new String[0] : query.split("&")) {
                String[] pair = part.split("=", 2);
                asked.put(pair[0], pair[1]);
            }
            body = answer(exchange.getRequestURI().getPath(), asked).getBytes(StandardCharsets.UTF_8);
        } catch (RuntimeException error) {
            status = 500;
            body = error.toString().getBytes(StandardCharsets.UTF_8);
        }
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
        exchange.close();
    }

    public static void main(String[] given) throws IOException {
        int partitions = Integer.parseInt(given[2]);
        int port = Integer.parseInt(given[4]);
        int threads = Integer.parseInt(given[6]);
        Streams peer = new Streams(given[0], given[1], partitions, given[3], given[5].equals("one"), threads);
        HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 16);
        server.setExecutor(Executors.newFixedThreadPool(2));
        server.createContext("/", peer::serve);
        server.start();
        peer.streams.start();
    }
}
