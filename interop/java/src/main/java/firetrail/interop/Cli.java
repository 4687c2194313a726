package firetrail.interop;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;

/** Entry point. Standard output carries JSON lines only; whatever a library prints goes to stderr. */
public final class Cli {
    private static final int USAGE = 2;
    private static final int FAILED = 1;

    private Cli() {
    }

    public static void main(String[] args) {
        PrintStream json = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Gson gson = new GsonBuilder().disableHtmlEscaping().create();
        try {
            Line.prepare();
            run(new Options(args), line -> json.println(gson.toJson(line)));
        } catch (UsageError e) {
            System.err.println("java peer: " + e.getMessage());
            Runtime.getRuntime().halt(USAGE);
        } catch (Throwable e) {
            e.printStackTrace();
            Runtime.getRuntime().halt(FAILED);
        }
        // Statistics threads of the store are not daemons and would keep the process alive.
        Runtime.getRuntime().halt(0);
    }

    private static void run(Options options, Consumer<JsonObject> out) throws Exception {
        String command = options.positional(0, "COMMAND");
        switch (command) {
            case "bench-put":
                new BenchPut(options, out).run();
                break;
            case "bench-get":
                new BenchRead(options, out).get();
                break;
            case "bench-query":
                new BenchRead(options, out).query();
                break;
            case "bench-recover":
                new BenchRead(options, out).recover();
                break;
            case "survey":
                new Survey(options, out).run();
                break;
            default:
                if (!StoreCommands.NAMES.contains(command)) {
                    throw new UsageError("unknown command '" + command + "', see README.md");
                }
                try (Session session = Session.open(options.store(), options)) {
                    new StoreCommands(session, out).run(options);
                }
        }
    }
}
