package firetrail.interop;

import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** A stored record as the JSON object that {@code firetrail dump --json} prints, decoded by RocketMQ. */
final class Records {
    private static final int MAGIC_AT = 4;

    private Records() {
    }

    static JsonObject describe(ByteBuffer record) {
        int start = record.position();
        int size = record.getInt(start);
        int magic = record.getInt(start + MAGIC_AT);
        MessageExt message = MessageDecoder.decode(record, true, false);
        JsonObject out = new JsonObject();
        if (message == null) {
            out.addProperty("error", "the Java decoder rejects this record");
            out.addProperty("size", size);
            out.addProperty("magic", magic & 0xFFFFFFFFL);
            return out;
        }
        out.addProperty("physical_offset", message.getCommitLogOffset());
        out.addProperty("size", message.getStoreSize());
        out.addProperty("magic", magic & 0xFFFFFFFFL);
        out.addProperty("topic", message.getTopic());
        out.addProperty("queue_id", message.getQueueId());
        out.addProperty("queue_offset", message.getQueueOffset());
        out.addProperty("sys_flag", message.getSysFlag());
        out.addProperty("flag", message.getFlag());
        out.addProperty("born_time", message.getBornTimestamp());
        out.addProperty("born_host", Hosts.format(message.getBornHost()));
        out.addProperty("store_time", message.getStoreTimestamp());
        out.addProperty("store_host", Hosts.format(message.getStoreHost()));
        out.addProperty("reconsume_times", message.getReconsumeTimes());
        out.addProperty("prepared_offset", message.getPreparedTransactionOffset());
        out.addProperty("body_crc", message.getBodyCRC());
        out.add("properties", properties(message));
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        out.addProperty("body", Base64.getEncoder().encodeToString(body));
        return out;
    }

    private static JsonObject properties(MessageExt message) {
        JsonObject out = new JsonObject();
        if (message.getProperties() != null) {
            new TreeMap<>(message.getProperties()).forEach(out::addProperty);
        }
        return out;
    }
}
