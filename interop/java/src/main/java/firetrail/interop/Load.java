package firetrail.interop;

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;

/** The messages of the benchmarks: one tag, two keys of their own each, queues in turn. */
final class Load {
    static final String TOPIC = "bench";
    private static final InetSocketAddress BORN = Hosts.parse("10.1.2.3:50001");
    private static final InetSocketAddress STORE = Hosts.parse("192.168.1.2:10911");

    private final byte[] body;
    private final int queues;

    Load(int bodySize, int queues) {
        this.body = new byte[bodySize];
        Arrays.fill(body, (byte) 'x');
        this.queues = queues;
    }

    StoredMessage message(long number) {
        StoredMessage message = new StoredMessage();
        fill(message, number);
        message.setBody(body);
        label(message, number);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    /** The body of a batch request with messages {@code number} to {@code number + size - 1}. */
    byte[] encodeBatch(long number, int size) {
        List<Message> items = new ArrayList<>(size);
        for (int i = 0; i < size; i++) {
            Message item = new Message();
            item.setTopic(TOPIC);
            item.setBody(body);
            label(item, number + i);
            items.add(item);
        }
        return MessageDecoder.encodeMessages(items);
    }

    MessageExtBatch batch(long batchNumber, byte[] encoded) {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, batchNumber);
        batch.setBody(encoded);
        return batch;
    }

    private void fill(MessageExt message, long number) {
        message.setTopic(TOPIC);
        message.setQueueId((int) (number % queues));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN);
        message.setStoreHost(STORE);
    }

    private static void label(Message message, long number) {
        message.setTags("tagA");
        message.setKeys("key-" + number + " order-" + number);
    }
}
