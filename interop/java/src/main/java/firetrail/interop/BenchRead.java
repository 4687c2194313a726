package firetrail.interop;

import com.google.gson.JsonObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;

/** Sequential reads, key queries and recovery of a store that bench-put has written. */
final class BenchRead {
    private static final String GROUP = "firetrail";
    private static final int PULL = 32;
    private static final int WARM_QUERIES = 20_000;

    private final Options options;
    private final Consumer<JsonObject> out;

    BenchRead(Options options, Consumer<JsonObject> out) {
        this.options = options;
        this.out = out;
    }

    /** All queues in pulls of 32, once to warm up and then {@code --rounds} times; slices are not decoded. */
    void get() throws Exception {
        int rounds = options.count("rounds", 3);
        try (Session session = Session.open(options.store(), options)) {
            session.awaitDispatch();
            readAll(session.store);
            double best = Double.MAX_VALUE;
            double sum = 0;
            long messages = 0;
            for (int i = 0; i < rounds; i++) {
                long start = System.nanoTime();
                messages = readAll(session.store);
                double seconds = (System.nanoTime() - start) / 1e9;
                best = Math.min(best, seconds);
                sum += seconds;
            }
            JsonObject line = new JsonObject();
            line.addProperty("messages", messages);
            line.addProperty("rounds", rounds);
            line.addProperty("seconds_best", best);
            line.addProperty("seconds_mean", sum / rounds);
            line.addProperty("per_second", Math.round(messages / best));
            line.addProperty("per_second_mean", Math.round(messages * rounds / sum));
            out.accept(line);
        }
    }

    private static long readAll(DefaultMessageStore store) throws Exception {
        long messages = 0;
        for (Map.Entry<String, Collection<Integer>> topic : Line.queues(store).entrySet()) {
            for (int queue : topic.getValue()) {
                long max = store.getMaxOffsetInQueue(topic.getKey(), queue);
                long offset = store.getMinOffsetInQueue(topic.getKey(), queue);
                while (offset < max) {
                    GetMessageResult result = store.getMessage(GROUP, topic.getKey(), queue, offset, PULL, null);
                    messages += result.getMessageCount();
                    offset = Math.max(offset + 1, result.getNextBeginOffset());
                    result.release();
                }
            }
        }
        return messages;
    }

    /** Latency of one query for each key of the file, after warming up with the same keys. */
    void query() throws Exception {
        List<String> keys = new ArrayList<>(Files.readAllLines(Path.of(options.required("keys"))));
        keys.removeIf(String::isBlank);
        String topic = options.text("topic", Load.TOPIC);
        int max = options.count("max", PULL);
        try (Session session = Session.open(options.store(), options)) {
            session.awaitDispatch();
            for (int i = 0; i < WARM_QUERIES; i++) {
                queryOne(session.store, topic, keys.get(i % keys.size()), max);
            }
            long[] nanos = new long[keys.size()];
            long found = 0;
            for (int i = 0; i < nanos.length; i++) {
                long start = System.nanoTime();
                found += queryOne(session.store, topic, keys.get(i), max);
                nanos[i] = System.nanoTime() - start;
            }
            Arrays.sort(nanos);
            JsonObject line = new JsonObject();
            line.addProperty("queries", nanos.length);
            line.addProperty("found", found);
            line.addProperty("mean_us", Arrays.stream(nanos).average().orElse(0) / 1e3);
            line.addProperty("p50_us", nanos[nanos.length / 2] / 1e3);
            line.addProperty("p99_us", nanos[(int) (nanos.length * 0.99)] / 1e3);
            out.accept(line);
        }
    }

    private static int queryOne(DefaultMessageStore store, String topic, String key, int max) {
        QueryMessageResult result = store.queryMessage(topic, key, max, 0, Long.MAX_VALUE);
        int found = result.getMessageBufferList().size();
        result.release();
        return found;
    }

    /** The process halts afterwards, so the store stays unclean and can be measured again. */
    void recover() throws Exception {
        String root = options.store();
        boolean unclean = Files.exists(Path.of(root, "abort"));
        DefaultMessageStore store = Line.create(Session.configure(root, options));
        long start = System.nanoTime();
        Session.load(store, root);
        long loaded = System.nanoTime();
        store.start();
        long started = System.nanoTime();
        JsonObject line = new JsonObject();
        line.addProperty("unclean", unclean);
        line.addProperty("bytes", store.getMaxPhyOffset() - store.getMinPhyOffset());
        line.addProperty("seconds_load", (loaded - start) / 1e9);
        line.addProperty("seconds_started", (started - start) / 1e9);
        out.accept(line);
        if (unclean) {
            Session.kill();
        }
        store.shutdown();
    }
}
