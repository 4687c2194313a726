import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Two push consumers of RocketMQ 5.x that leave the rebalancing to the broker, which is configured to let
 * their group pop. The program sends messages and prints a line for each that is delivered,
 * {@code pop TAB body TAB details}: how often it was delivered before, and whether it was popped. One of
 * the messages is not consumed at the first try; it is redelivered ten seconds later.
 * Arguments: name server, topic, group, number of messages.
 */
public class PopClient {
    private static final int ANSWER_MS = 30_000; // the default of 3 s is short on a busy machine

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer("PG");
        producer.setNamesrvAddr(arguments[0]);
        producer.setMqClientApiTimeout(ANSWER_MS);
        producer.setSendMsgTimeout(ANSWER_MS);
        producer.start();
        for (int i = 0; i < count; i++) {
            byte[] body = ("pop" + i).getBytes(StandardCharsets.UTF_8);
            producer.send(new Message(arguments[1], i % 2 == 0 ? "Even" : "Odd", "k" + i, body));
        }
        CountDownLatch left = new CountDownLatch(count + 1);
        for (String name : new String[] {"one", "two"}) {
            consumer(name, arguments, left).start();
        }
        if (!left.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " messages are missing");
        }
        Thread.sleep(1000); // acknowledgements are sent in the background
        System.out.flush();
        System.exit(0);
    }

    private static DefaultMQPushConsumer consumer(String name, String[] arguments, CountDownLatch left)
        throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(ANSWER_MS);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(20000);
        consumer.subscribe(arguments[1], "Even || Odd");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean failed = false;
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                boolean popped = message.getProperty("POP_CK") != null;
                say(body, message.getReconsumeTimes() + " " + (popped ? "popped" : "pulled"));
                failed |= body.equals("pop3") && message.getReconsumeTimes() == 0;
                left.countDown();
            }
            return failed
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static synchronized void say(String body, String details) {
        System.out.println("pop\t" + body + "\t" + details);
    }
}
