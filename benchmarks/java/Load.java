import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Load for a broker, by RocketMQ's own Java client, as in RocketMQ's benchmark: THREADS threads that each send and wait,
 * messages of 128 bytes, one push consumer. The program prints one line of JSON.
 *
 * <pre>
 * send NAMESRV TOPIC THREADS SIZE MESSAGES BATCH    send MESSAGES messages, in batches of BATCH
 * consume NAMESRV TOPIC MESSAGES                    receive MESSAGES messages that are already stored
 * relay NAMESRV TOPIC RATE MESSAGES                 send RATE messages per second while receiving them
 * </pre>
 *
 * With the properties load.accessKey and load.secretKey, all requests are signed.
 */
public class Load {
    private static String namesrv;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        namesrv = arguments[1];
        topic = arguments[2];
        int[] numbers = Arrays.stream(arguments).skip(3).mapToInt(Integer::parseInt).toArray();
        try {
            switch (arguments[0]) {
                case "send": send(numbers[0], numbers[1], numbers[2], numbers[3]); break;
                case "consume": consume(numbers[0]); break;
                case "relay": relay(numbers[0], numbers[1]); break;
                default: throw new IllegalArgumentException(arguments[0]);
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // threads of the client would keep it alive
        }
        System.out.flush();
        System.exit(0);
    }

    private static void send(int threads, int size, int messages, int batch) throws Exception {
        DefaultMQProducer producer = producer();
        sendAll(producer, threads, size, messages / 5, batch); // the compiler's turn
        long began = System.nanoTime();
        long[] latencies = sendAll(producer, threads, size, messages, batch);
        double seconds = (System.nanoTime() - began) / 1e9;
        producer.shutdown();
        print(messages / seconds, latencies);
    }

    private static long[] sendAll(DefaultMQProducer producer, int threads, int size, int messages, int batch)
            throws Exception {
        int calls = messages / batch;
        long[] latencies = new long[calls];
        AtomicLong next = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        CountDownLatch done = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            new Thread(() -> {
                for (int n = (int) next.getAndIncrement(); n < calls; n = (int) next.getAndIncrement()) {
                    long before = System.nanoTime();
                    try {
                        SendResult result = batch == 1 ? producer.send(message(size)) : producer.send(messages(size, batch));
                        if (result.getSendStatus() != SendStatus.SEND_OK) {
                            failed.incrementAndGet();
                        }
                    } catch (Exception error) {
                        failed.incrementAndGet();
                        error.printStackTrace();
                    }
                    latencies[n] = System.nanoTime() - before;
                }
                done.countDown();
            }).start();
        }
        done.await();
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " sends failed");
        }
        return latencies;
    }

    private static void consume(int messages) throws Exception {
        AtomicLong received = new AtomicLong();
        AtomicLong began = new AtomicLong();
        AtomicLong first = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        int warm = messages / 5;
        DefaultMQPushConsumer consumer = consumer();
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            long count = received.addAndGet(list.size());
            if (count >= warm && began.compareAndSet(0, System.nanoTime())) {
                first.set(count);
            }
            if (count >= messages) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        double seconds = (System.nanoTime() - began.get()) / 1e9;
        consumer.shutdown();
        print((messages - first.get()) / seconds, new long[] {0});
    }

    private static void relay(int rate, int messages) throws Exception {
        int warm = messages / 5;
        long[] latencies = new long[warm + messages];
        AtomicLong received = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQProducer producer = producer();
        // The topic exists now, as it must when the consumer asks for it.
        DefaultMQPushConsumer consumer = consumer();
        consumer.registerMessageListener((MessageListenerConcurrently) (list, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : list) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                if (body.capacity() == 1) {
                    continue;
                }
                latencies[body.getInt(8)] = now - body.getLong(0);
                if (received.incrementAndGet() == latencies.length) {
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(3000); // all queues are assigned
        long began = System.nanoTime();
        for (int n = 0; n < latencies.length; n++) {
            long due = began + n * 1_000_000_000L / rate;
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            byte[] body = new byte[128];
            ByteBuffer.wrap(body).putLong(due).putInt(n);
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
        }
        done.await();
        double seconds = (System.nanoTime() - began) / 1e9;
        consumer.shutdown();
        producer.shutdown();
        print(latencies.length / seconds, Arrays.copyOfRange(latencies, warm, latencies.length));
    }

    private static DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("benchmark_producer", hook());
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer");
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(30000);
        producer.start();
        for (int tries = 0; ; tries++) { // a broker that has just started may not have its route yet
            try {
                producer.send(message(1));
                return producer;
            } catch (Exception error) {
                if (tries == 100) {
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    private static DefaultMQPushConsumer consumer() throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer("benchmark_consumer", hook(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    /** Signs requests, if there are credentials. */
    private static RPCHook hook() {
        String user = System.getProperty("load.accessKey");
        return user == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(user, System.getProperty("load.secretKey")));
    }

    private static Message message(int size) {
        return new Message(topic, new byte[size]);
    }

    private static List<Message> messages(int size, int count) {
        List<Message> found = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            found.add(message(size));
        }
        return found;
    }

    private static void print(double perSecond, long[] latencies) {
        Arrays.sort(latencies);
        System.out.printf(
                "{\"per_s\": %.1f, \"p50_s\": %.6f, \"p99_s\": %.6f, \"max_s\": %.6f}%n",
                perSecond,
                latencies[latencies.length / 2] / 1e9,
                latencies[(int) (latencies.length * 0.99)] / 1e9,
                latencies[latencies.length - 1] / 1e9);
    }
}
