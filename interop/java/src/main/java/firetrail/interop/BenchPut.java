package firetrail.interop;

import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import java.util.function.LongFunction;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/**
 * Put throughput from the first put until queues and index hold everything. The JVM is warmed up on
 * another store first. Building a message object is part of the timed work (the 2 GiB heap could not
 * hold them all); its cost alone is reported as {@code build_nanos}. Batch bodies are encoded before.
 */
final class BenchPut {
    private static final long WARM_MESSAGES = 300_000;
    private static final long WARM_NANOS = 5_000_000_000L;

    private final Options options;
    private final Consumer<JsonObject> out;
    private final int threads;
    private final int batch;
    private final Load load;

    BenchPut(Options options, Consumer<JsonObject> out) {
        this.options = options;
        this.out = out;
        this.threads = options.count("threads", 1);
        this.batch = options.count("batch", 0);
        this.load = new Load(options.count("body", 256), options.count("queues", 4));
    }

    void run() throws Exception {
        long count = options.number("count", 2_000_000);
        String root = options.store();
        if (Files.exists(Path.of(root, "commitlog"))) {
            throw new UsageError(root + " already holds a store; bench-put needs a new folder");
        }
        warmUp(root + ".warmup");
        System.gc();
        JsonObject line = new JsonObject();
        line.addProperty("messages", count);
        line.addProperty("threads", threads);
        line.addProperty("batch", batch);
        line.addProperty("flush", options.text("flush", "async"));
        line.addProperty("pool", options.has("pool"));
        if (batch == 0) {
            line.addProperty("build_nanos", buildNanos());
        }
        Session session = Session.open(root, options);
        Timing timing = measure(session, count, Long.MAX_VALUE);
        describe(line, timing, count, session.store.getMaxPhyOffset());
        out.accept(line);
        session.close();
    }

    private void describe(JsonObject line, Timing timing, long count, long bytes) {
        line.addProperty("bytes", bytes);
        line.addProperty("seconds_put", timing.put / 1e9);
        line.addProperty("seconds_total", timing.total / 1e9);
        line.addProperty("per_second_put", Math.round(count / (timing.put / 1e9)));
        line.addProperty("per_second", Math.round(count / (timing.total / 1e9)));
        if (batch > 0) {
            line.addProperty("seconds_encode", timing.encode / 1e9);
            line.addProperty("per_second_with_encoding",
                Math.round(count / ((timing.total + timing.encode) / 1e9)));
        }
        JsonObject other = new JsonObject();
        timing.failures.forEach((status, n) -> other.addProperty(status.name(), n));
        line.add("not_ok", other);
    }

    private void warmUp(String root) throws Exception {
        remove(Path.of(root));
        Session session = Session.open(root, options);
        measure(session, WARM_MESSAGES, System.nanoTime() + WARM_NANOS);
        session.store.shutdown();
        session.store.destroy();
        remove(Path.of(root));
    }

    private long buildNanos() {
        int count = 500_000;
        long check = 0;
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            check += load.message(i).getPropertiesString().length();
        }
        long nanos = (System.nanoTime() - start) / count;
        return check > 0 ? nanos : -1;
    }

    private Timing measure(Session session, long count, long deadline) throws Exception {
        Timing timing = new Timing();
        long steps = batch == 0 ? count : (count + batch - 1) / batch;
        LongFunction<PutMessageResult> put = step -> session.store.putMessage(load.message(step));
        if (batch > 0) {
            byte[][] bodies = new byte[Math.toIntExact(steps)][];
            long start = System.nanoTime();
            for (int i = 0; i < bodies.length; i++) {
                long first = (long) i * batch;
                bodies[i] = load.encodeBatch(first, (int) Math.min(batch, count - first));
            }
            timing.encode = System.nanoTime() - start;
            put = step -> session.store.putMessages(load.batch(step, bodies[(int) step]));
        }
        putAll(session, put, steps, deadline, timing);
        return timing;
    }

    private void putAll(Session session, LongFunction<PutMessageResult> put, long steps, long deadline,
        Timing timing) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        CountDownLatch go = new CountDownLatch(1);
        List<Future<?>> running = new ArrayList<>();
        for (int t = 0; t < threads; t++) {
            int first = t;
            running.add(pool.submit(() -> {
                go.await();
                putShare(session, put, first, steps, deadline, timing);
                return null;
            }));
        }
        long start = System.nanoTime();
        go.countDown();
        for (Future<?> share : running) {
            share.get();
        }
        timing.put = System.nanoTime() - start;
        session.awaitDispatch();
        timing.total = System.nanoTime() - start;
        pool.shutdown();
    }

    private void putShare(Session session, LongFunction<PutMessageResult> put, int first, long steps,
        long deadline, Timing timing) {
        PutMessageResult last = null;
        for (long step = first; step < steps; step += threads) {
            PutMessageResult result = put.apply(step);
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                timing.failures.merge(result.getPutMessageStatus(), 1L, Long::sum);
            } else {
                last = result;
            }
            if ((step & 0x3FF) == 0 && System.nanoTime() > deadline) {
                break;
            }
        }
        if (last != null) {
            session.wrote(last);
        }
    }

    private static void remove(Path root) throws IOException {
        if (!Files.exists(root)) {
            return;
        }
        List<Path> paths;
        try (Stream<Path> walk = Files.walk(root)) {
            paths = walk.sorted(Comparator.reverseOrder()).collect(Collectors.toList());
        }
        for (Path path : paths) {
            Files.delete(path);
        }
    }

    private static final class Timing {
        long encode;
        long put;
        long total;
        final ConcurrentHashMap<PutMessageStatus, Long> failures = new ConcurrentHashMap<>();
    }
}
