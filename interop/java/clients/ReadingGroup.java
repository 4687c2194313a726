import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer that ends when it has received a number of messages. It prints a line for each:
 * {@code queue TAB offset TAB keys}. Arguments: name server, topic, group, number of messages.
 */
public class ReadingGroup {
    private static final int ANSWER_MS = 30_000; // the default of 3 s is short on a busy machine

    public static void main(String[] arguments) throws Exception {
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[3]));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(ANSWER_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setVipChannelEnabled(false);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            say(messages);
            messages.forEach(message -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean done = left.await(60, TimeUnit.SECONDS);
        if (!done) {
            System.err.println(left.getCount() + " messages are missing");
        }
        consumer.shutdown();
        System.out.flush();
        System.exit(done ? 0 : 1);
    }

    private static synchronized void say(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            System.out.println(
                message.getQueueId() + "\t" + message.getQueueOffset() + "\t" + message.getKeys());
        }
    }
}
