package firetrail.interop;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;

/** Messages from the lines of a spec file. Every field but {@code topic} has a default. */
final class Spec {
    private final JsonObject line;

    Spec(JsonObject line) {
        this.line = line;
    }

    /** Waits as long as the line says; what is put next gets a later store time. */
    void pause() throws InterruptedException {
        Thread.sleep(number("pause_ms", 0));
    }

    boolean isBatch() {
        return line.has("batch");
    }

    StoredMessage message() {
        StoredMessage message = new StoredMessage();
        fill(message);
        message.setBody(body(line));
        message.setPreparedTransactionOffset(number("prepared_offset", 0));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** The items are encoded by RocketMQ as a client would; the line's own properties are the batch's. */
    MessageExtBatch batch() {
        List<Message> items = new ArrayList<>();
        for (JsonElement element : line.getAsJsonArray("batch")) {
            JsonObject item = element.getAsJsonObject();
            Message message = new Message(topic(), body(item));
            MessageAccessor.setProperties(message, properties(item));
            message.setFlag(item.has("flag") ? item.get("flag").getAsInt() : 0);
            items.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch);
        batch.setBody(MessageDecoder.encodeMessages(items));
        return batch;
    }

    private void fill(MessageExt message) {
        message.setTopic(topic());
        message.setQueueId((int) number("queue_id", 0));
        message.setFlag((int) number("flag", 0));
        message.setSysFlag((int) number("sys_flag", 0));
        message.setBornTimestamp(number("born_time", System.currentTimeMillis()));
        message.setBornHost(Hosts.parse(text("born_host", "127.0.0.1:50001")));
        message.setStoreHost(Hosts.parse(text("store_host", "127.0.0.1:10911")));
        message.setReconsumeTimes((int) number("reconsume_times", 0));
        MessageAccessor.setProperties(message, properties(line));
    }

    private String topic() {
        if (!line.has("topic")) {
            throw new UsageError("the spec line " + line + " has no topic");
        }
        return line.get("topic").getAsString();
    }

    private long number(String name, long otherwise) {
        return line.has(name) ? line.get(name).getAsLong() : otherwise;
    }

    private String text(String name, String otherwise) {
        return line.has(name) ? line.get(name).getAsString() : otherwise;
    }

    private static byte[] body(JsonObject from) {
        return from.has("body") ? Base64.getDecoder().decode(from.get("body").getAsString()) : new byte[0];
    }

    private static Map<String, String> properties(JsonObject from) {
        Map<String, String> properties = new HashMap<>();
        if (from.has("properties")) {
            from.getAsJsonObject("properties").entrySet()
                .forEach(entry -> properties.put(entry.getKey(), entry.getValue().getAsString()));
        }
        return properties;
    }
}
