package firetrail.interop;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** The commands that write, read and query one open store and answer in JSON lines. */
final class StoreCommands {
    static final Set<String> NAMES = Set.of("write", "read", "query", "time", "get", "byid", "byoffset", "script");
    private static final String GROUP = "firetrail";
    private static final int PULL = 32;
    private static final int BLANK_MAGIC = 0xCBD43194;

    private final Session session;
    private final DefaultMessageStore store;
    private final Consumer<JsonObject> out;

    StoreCommands(Session session, Consumer<JsonObject> out) {
        this.session = session;
        this.store = session.store;
        this.out = out;
    }

    /** Positional arguments: the command, the store (opened already), then those of the command. */
    void run(Options options) throws Exception {
        session.awaitDispatch();
        switch (options.positional(0, "COMMAND")) {
            case "write":
                write(options);
                break;
            case "read":
                read(options);
                break;
            case "query":
                query(options);
                break;
            case "time":
                time(options);
                break;
            case "get":
                get(options);
                break;
            case "byid":
                one(MessageDecoder.decodeMessageId(options.positional(2, "ID")).getOffset());
                break;
            case "byoffset":
                one(Long.parseLong(options.positional(2, "OFFSET")));
                break;
            case "script":
                script(options);
                break;
            default:
                throw new UsageError("unknown command '" + options.positional(0, "COMMAND") + "', see README.md");
        }
    }

    /** Runs the commands of a file, one a line without the store, each answer closed by an "end" line. */
    private void script(Options options) throws Exception {
        for (String line : Files.readAllLines(Path.of(options.required("file")))) {
            if (!line.isBlank()) {
                run(command(line, options.store()));
                end(line);
            }
        }
    }

    /** The same on a store that may be damaged: what a command throws is its answer. */
    void survey(Options options, String store) throws Exception {
        for (String line : Files.readAllLines(Path.of(options.required("file")))) {
            try {
                run(command(line, store));
            } catch (RuntimeException e) {
                error(e);
            }
            end(line);
        }
    }

    private static Options command(String line, String store) {
        Options command = new Options(line.trim().split("\\s+"));
        command.positional.add(1, store);
        return command;
    }

    private void end(String line) {
        JsonObject end = new JsonObject();
        end.addProperty("end", line);
        out.accept(end);
    }

    private void error(RuntimeException error) {
        JsonObject line = new JsonObject();
        line.addProperty("error", error.toString());
        out.accept(line);
    }

    private void write(Options options) throws Exception {
        for (String line : Files.readAllLines(Path.of(options.required("spec")))) {
            if (!line.isBlank()) {
                Spec spec = new Spec(JsonParser.parseString(line).getAsJsonObject());
                spec.pause();
                PutMessageResult result = spec.isBatch()
                    ? store.putMessages(spec.batch())
                    : store.putMessage(spec.message());
                session.wrote(result);
                out.accept(putResult(result));
            }
        }
        store.flush();
        session.awaitDispatch();
    }

    private static JsonObject putResult(PutMessageResult result) {
        JsonObject line = new JsonObject();
        line.addProperty("status", result.getPutMessageStatus().name());
        AppendMessageResult append = result.getAppendMessageResult();
        if (append != null) {
            line.addProperty("append_status", append.getStatus().name());
            line.addProperty("msg_id", append.getMsgId());
            line.addProperty("queue_offset", append.getLogicsOffset());
            line.addProperty("physical_offset", append.getWroteOffset());
            line.addProperty("size", append.getWroteBytes());
            line.addProperty("store_time", append.getStoreTimestamp());
            line.addProperty("messages", append.getMsgNum());
        }
        return line;
    }

    private void read(Options options) throws Exception {
        if (options.has("log")) {
            readLog();
            return;
        }
        for (Map.Entry<String, Collection<Integer>> topic : Line.queues(store).entrySet()) {
            for (int queue : new TreeSet<>(topic.getValue())) {
                readQueue(topic.getKey(), queue, options.text("tags", null));
            }
        }
    }

    private void readQueue(String topic, int queue, String tags) throws Exception {
        MessageFilter filter = tags == null ? null : Line.tagFilter(topic, tags);
        long min = store.getMinOffsetInQueue(topic, queue);
        long max = store.getMaxOffsetInQueue(topic, queue);
        JsonObject bounds = new JsonObject();
        JsonObject name = new JsonObject();
        name.addProperty("topic", topic);
        name.addProperty("queue_id", queue);
        name.addProperty("min_offset", min);
        name.addProperty("max_offset", max);
        bounds.add("queue", name);
        out.accept(bounds);
        for (long offset = min; offset < max; ) {
            GetMessageResult result;
            try {
                result = store.getMessage(GROUP, topic, queue, offset, PULL, filter);
            } catch (RuntimeException e) {   // damage; a reader continues after it
                error(e);
                offset++;
                continue;
            }
            try {
                if (result.getStatus() != GetMessageStatus.FOUND) {
                    JsonObject gap = getResult(result);
                    gap.addProperty("offset", offset);
                    out.accept(gap);
                }
                for (ByteBuffer record : result.getMessageBufferList()) {
                    out.accept(Records.describe(record));
                }
                offset = Math.max(offset + 1, result.getNextBeginOffset());
            } finally {
                result.release();
            }
        }
    }

    /** Every record in log order, also those that no queue refers to (prepared and rolled back). */
    private void readLog() {
        long end = store.getMaxPhyOffset();
        for (long offset = Math.max(store.getMinPhyOffset(), 0); offset < end; ) {   // -1 in an empty store
            SelectMappedBufferResult head = store.selectOneMessageByOffset(offset, 8);
            int size = head.getByteBuffer().getInt(0);
            boolean blank = head.getByteBuffer().getInt(4) == BLANK_MAGIC;
            head.release();
            if (!blank) {
                one(offset);
            }
            offset += size;
        }
    }

    private void one(long offset) {
        SelectMappedBufferResult record = store.selectOneMessageByOffset(offset);
        if (record == null) {
            JsonObject line = new JsonObject();
            line.addProperty("error", "no message at this offset");
            line.addProperty("physical_offset", offset);
            out.accept(line);
            return;
        }
        try {
            out.accept(Records.describe(record.getByteBuffer()));
        } finally {
            record.release();
        }
    }

    private void query(Options options) throws Exception {
        QueryMessageResult result = store.queryMessage(options.required("topic"), options.required("key"),
            options.count("max", PULL), options.number("begin", 0), options.number("end", Long.MAX_VALUE));
        try {
            for (ByteBuffer record : result.getMessageBufferList()) {
                out.accept(Records.describe(record));
            }
        } finally {
            result.release();
        }
    }

    private void time(Options options) throws Exception {
        JsonObject line = new JsonObject();
        line.addProperty("offset", Line.offsetByTime(store, options.required("topic"),
            options.count("queue", 0), options.requiredNumber("at"), options.text("boundary", null)));
        out.accept(line);
    }

    private void get(Options options) throws Exception {
        String topic = options.required("topic");
        String tags = options.text("tags", null);
        MessageFilter filter = tags == null ? null : Line.tagFilter(topic, tags);
        GetMessageResult result = store.getMessage(GROUP, topic, options.count("queue", 0),
            options.requiredNumber("offset"), options.count("max", PULL), filter);
        out.accept(getResult(result));
        result.release();
    }

    private static JsonObject getResult(GetMessageResult result) {
        JsonObject line = new JsonObject();
        line.addProperty("status", result.getStatus().name());
        line.addProperty("next_offset", result.getNextBeginOffset());
        line.addProperty("min_offset", result.getMinOffset());
        line.addProperty("max_offset", result.getMaxOffset());
        JsonArray found = new JsonArray();
        result.getMessageMapedList().forEach(slice -> found.add(slice.getStartOffset()));
        line.add("physical_offsets", found);
        return line;
    }
}
