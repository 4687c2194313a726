import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends messages with delivery times and recalls one of them: {@code TimerClient namesrv}. */
public class TimerClient {
    private static final int ANSWER_MS = 30_000; // the default of 3 s is short on a busy machine

    private static final String TOPIC = "JavaTimer";

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("JavaTimerProducer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setMqClientApiTimeout(ANSWER_MS);
        producer.setSendMsgTimeout(ANSWER_MS);
        producer.start();
        send(producer, "now", new Message(TOPIC, "now".getBytes()), 0);
        Message message = new Message(TOPIC, "ms".getBytes());
        message.setDelayTimeMs(1500);
        send(producer, "ms", message, 1500);
        message = new Message(TOPIC, "sec".getBytes());
        message.setDelayTimeSec(2);
        send(producer, "sec", message, 2000);
        message = new Message(TOPIC, "time".getBytes());
        message.setDeliverTimeMs(System.currentTimeMillis() + 3000);
        send(producer, "time", message, 3000);
        message = new Message(TOPIC, "recalled".getBytes());
        message.setDelayTimeMs(4000);
        SendResult sent = send(producer, "recalled", message, 4000);
        String id = producer.recallMessage(TOPIC, sent.getRecallHandle());
        System.out.println("recall\t" + id.equals(sent.getMsgId()) + "\t0");
        message = new Message(TOPIC, "last".getBytes());
        message.setDelayTimeMs(6000);
        send(producer, "last", message, 6000);

        CountDownLatch last = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("JavaTimerConsumer");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(ANSWER_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt got : messages) {
                long due = Long.parseLong(got.getProperty("due"));
                System.out.println("got\t" + new String(got.getBody()) + "\t"
                        + (got.getStoreTimestamp() - due));
                if (new String(got.getBody()).equals("last")) {
                    last.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        last.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    private static SendResult send(DefaultMQProducer producer, String name, Message message, int ms)
            throws Exception {
        message.putUserProperty("due", Long.toString(System.currentTimeMillis() + ms));
        SendResult sent = producer.send(message);
        System.out.println("sent\t" + name + "\t" + sent.getSendStatus());
        return sent;
    }
}
