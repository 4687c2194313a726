package firetrail.interop;

import com.google.gson.JsonObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/** Opens many stores, damaged ones among them, and runs the same script on each. None is shut down. */
final class Survey {
    private static final int AT_ONCE = 4;
    private static final long PATIENCE_S = 15;

    private final Options options;
    private final Consumer<JsonObject> out;

    Survey(Options options, Consumer<JsonObject> out) {
        this.options = options;
        this.out = out;
    }

    /** The answers of each store, closed by a line with "store"; one with "failed" tells why there are no more. */
    void run() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
        List<String> stores = Files.readAllLines(Path.of(options.required("stores")));
        List<List<JsonObject>> answers = new ArrayList<>();
        List<Future<?>> done = new ArrayList<>();
        for (String store : stores) {
            List<JsonObject> lines = Collections.synchronizedList(new ArrayList<>());
            answers.add(lines);
            done.add(pool.submit(() -> {
                new StoreCommands(Session.open(store, options), lines::add).survey(options, store);
                return null;
            }));
        }
        for (int i = 0; i < stores.size(); i++) {
            String failure = failure(done.get(i));
            new ArrayList<>(answers.get(i)).forEach(out);
            if (failure != null) {
                tell("failed", failure);
            }
            tell("store", stores.get(i));
        }
    }

    private static String failure(Future<?> done) throws InterruptedException {
        try {
            done.get(PATIENCE_S, TimeUnit.SECONDS);
            return null;
        } catch (ExecutionException e) {
            return String.valueOf(e.getCause());
        } catch (TimeoutException e) {
            done.cancel(true);
            return "no end within " + PATIENCE_S + " s";
        }
    }

    private void tell(String name, String value) {
        JsonObject line = new JsonObject();
        line.addProperty(name, value);
        out.accept(line);
    }
}
