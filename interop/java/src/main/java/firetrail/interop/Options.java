package firetrail.interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Positional arguments, and options of the form {@code --name value}, or {@code --name} for a switch. */
final class Options {
    private static final Set<String> SWITCHES = Set.of("kill", "pool", "prop-crc", "log", "lmq", "ext");
    private static final Set<String> VALUES = Set.of(
        "log-size", "queue-size", "slots", "entries", "flush", "spec", "topic", "key", "begin", "end", "max",
        "queue", "at", "boundary", "offset", "tags", "count", "threads", "body", "queues", "batch", "keys",
        "rounds", "file", "stores", "log-paths", "read-only-paths");

    final List<String> positional = new ArrayList<>();
    private final Map<String, String> named = new HashMap<>();

    Options(String[] args) {
        for (int i = 0; i < args.length; i++) {
            if (!args[i].startsWith("--")) {
                positional.add(args[i]);
                continue;
            }
            String name = args[i].substring(2);
            if (SWITCHES.contains(name)) {
                named.put(name, "");
            } else if (!VALUES.contains(name)) {
                throw new UsageError("unknown option --" + name);
            } else if (i + 1 == args.length) {
                throw new UsageError("option --" + name + " needs a value");
            } else {
                named.put(name, args[++i]);
            }
        }
    }

    boolean has(String name) {
        return named.containsKey(name);
    }

    String text(String name, String otherwise) {
        return named.getOrDefault(name, otherwise);
    }

    String required(String name) {
        String value = named.get(name);
        if (value == null) {
            throw new UsageError("option --" + name + " is missing");
        }
        return value;
    }

    long number(String name, long otherwise) {
        return has(name) ? requiredNumber(name) : otherwise;
    }

    long requiredNumber(String name) {
        try {
            return Long.parseLong(required(name));
        } catch (NumberFormatException e) {
            throw new UsageError("option --" + name + " is '" + named.get(name) + "'; it must be a whole number");
        }
    }

    int count(String name, int otherwise) {
        return Math.toIntExact(number(name, otherwise));
    }

    String store() {
        return positional(1, "STORE");
    }

    String positional(int index, String what) {
        if (positional.size() <= index) {
            throw new UsageError("argument " + what + " is missing");
        }
        return positional.get(index);
    }
}
