import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The Java client (org.apache.rocketmq:rocketmq-client): {@code java -cp 'lib/*' HelloJava.java 127.0.0.1:9876}. */
public class HelloJava {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("hello-producers");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        for (int n = 0; n < 3; n++) {
            byte[] body = ("hello " + n).getBytes(StandardCharsets.UTF_8);
            producer.send(new Message("HelloJava", "greeting", "key-" + n, body));
        }

        CountDownLatch left = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("hello-java");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("HelloJava", "greeting");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> {
                System.out.println("got " + new String(message.getBody(), StandardCharsets.UTF_8));
                left.countDown();
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        left.await();
        consumer.shutdown();
        producer.shutdown();
    }
}
