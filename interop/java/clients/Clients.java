import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's Java clients at work: sends in every way and prints what each kind of consumer gets, a
 * line for each message: {@code scenario TAB body TAB details}. Arguments: name server, scenario.
 */
public class Clients {
    private static final int ANSWER_MS = 30_000; // the default of 3 s is short on a busy machine

    private static String namesrv;

    public static void main(String[] arguments) {
        namesrv = arguments[0];
        try {
            play(arguments[1]);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the clients' threads would keep running
        }
        System.out.flush();
        System.exit(0);
    }

    private static void play(String scenario) throws Exception {
        switch (scenario) {
            case "sends": sends(); break;
            case "orderly": orderly(); break;
            case "broadcast": broadcast(); break;
            case "filter": filter(); break;
            case "retry": retry(); break;
            case "transaction": transaction(); break;
            case "lite": lite(); break;
            case "request-v4": request(true); break;
            case "request-v5": request(false); break;
            default: throw new IllegalArgumentException(scenario);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(Object... parts) {
        StringBuilder line = new StringBuilder();
        for (Object part : parts) {
            line.append(line.length() == 0 ? "" : "\t").append(part);
        }
        System.out.println(line);
    }

    private static DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(ANSWER_MS);
        producer.setSendMsgTimeout(ANSWER_MS);
        producer.setInstanceName("producer-" + group);
        producer.start();
        return producer;
    }

    private static DefaultMQPushConsumer consumer(String group, String name) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(ANSWER_MS);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static void checked(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    private static void await(CountDownLatch latch) throws Exception {
        if (!latch.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(latch.getCount() + " messages are missing");
        }
    }

    private static void sends() throws Exception {
        DefaultMQProducer producer = producer("PG");
        String topic = "JavaSends";
        checked(producer.send(new Message(topic, "TagA", "key1", bytes("sync"))));
        CountDownLatch answered = new CountDownLatch(1);
        producer.send(new Message(topic, "TagA", "key2", bytes("async")), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                answered.countDown();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
            }
        });
        await(answered);
        producer.sendOneway(new Message(topic, "TagA", "key3", bytes("oneway")));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            batch.add(new Message(topic, "TagA", "key4", bytes("batch" + i)));
        }
        checked(producer.send(batch));
        Message delayed = new Message(topic, "TagA", "key5", bytes("delayed"));
        delayed.setDelayTimeLevel(1);
        checked(producer.send(delayed));
        StringBuilder large = new StringBuilder();
        for (int i = 0; i < 20000; i++) {
            large.append("abcdefgh".charAt(i % 8));
        }
        checked(producer.send(new Message(topic, "TagA", "key6", bytes("large" + large))));
        CountDownLatch left = new CountDownLatch(8);
        DefaultMQPushConsumer consumer = consumer("CG", "consumer");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = text(message);
                say("sends", body.substring(0, Math.min(body.length(), 10)), message.getKeys());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(left);
        consumer.shutdown();
        producer.shutdown();
    }

    private static void orderly() throws Exception {
        DefaultMQProducer producer = producer("PG");
        for (int i = 0; i < 40; i++) {
            Message message = new Message("JavaOrderly", "T", "k" + i, bytes(i % 4 + "-" + i / 4));
            checked(producer.send(message, (queues, m, key) -> queues.get((Integer) key), i % 4));
        }
        CountDownLatch left = new CountDownLatch(40);
        DefaultMQPushConsumer consumer = consumer("CGO", "orderly");
        consumer.subscribe("JavaOrderly", "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                say("orderly", text(message), message.getQueueId());
                left.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(left);
        consumer.shutdown();
        producer.shutdown();
    }

    private static void broadcast() throws Exception {
        DefaultMQProducer producer = producer("PG");
        for (int i = 0; i < 4; i++) {
            checked(producer.send(new Message("JavaBroadcast", "T", "k", bytes("first" + i))));
        }
        CountDownLatch left = new CountDownLatch(8);
        for (String name : new String[] {"one", "two"}) {
            DefaultMQPushConsumer consumer = consumer("CGB", name + System.nanoTime());
            consumer.setMessageModel(
                Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            consumer.subscribe("JavaBroadcast", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    say("broadcast", text(message), name);
                    left.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        await(left);
    }

    private static void filter() throws Exception {
        DefaultMQProducer producer = producer("PG");
        for (int i = 0; i < 6; i++) {
            Message message = new Message("JavaFilter", i % 2 == 0 ? "Even" : "Odd", bytes("" + i));
            message.putUserProperty("n", String.valueOf(i));
            checked(producer.send(message));
        }
        CountDownLatch left = new CountDownLatch(6);
        DefaultMQPushConsumer tags = consumer("CGT", "tags");
        tags.subscribe("JavaFilter", "Odd || Other");
        DefaultMQPushConsumer sql = consumer("CGS", "sql");
        sql.subscribe("JavaFilter", MessageSelector.bySql("n > 1 AND n < 5 AND TAGS IS NOT NULL"));
        for (DefaultMQPushConsumer consumer : new DefaultMQPushConsumer[] {tags, sql}) {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    say(consumer.getConsumerGroup(), text(message), message.getTags());
                    left.countDown();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        await(left);
    }

    private static void retry() throws Exception {
        DefaultMQProducer producer = producer("PG");
        checked(producer.send(new Message("JavaRetry", "T", "k", bytes("again"))));
        CountDownLatch left = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = consumer("CGR", "retry");
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe("JavaRetry", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("retry", text(message), message.getTopic() + message.getReconsumeTimes());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        await(left);
        CountDownLatch dead = new CountDownLatch(1);
        DefaultMQPushConsumer letters = consumer("CGD", "dead");
        letters.subscribe("%DLQ%CGR", "*");
        letters.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("dead", text(message), message.getReconsumeTimes());
                dead.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Thread.sleep(2000);
        letters.start();
        await(dead);
    }

    private static void transaction() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("PGX");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(ANSWER_MS);
        producer.setSendMsgTimeout(ANSWER_MS);
        producer.setInstanceName("transactions");
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object choice) {
                return (LocalTransactionState) choice;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                say("check", text(message), message.getTopic());
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (LocalTransactionState state : LocalTransactionState.values()) {
            Message message = new Message("JavaTransaction", "T", "k", bytes(state.name()));
            checked(producer.sendMessageInTransaction(message, state));
        }
        CountDownLatch left = new CountDownLatch(2);
        DefaultMQPushConsumer consumer = consumer("CGX", "transaction");
        consumer.subscribe("JavaTransaction", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("transaction", text(message), message.getTopic());
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        await(left);
    }

    private static void lite() throws Exception {
        DefaultMQProducer producer = producer("PG");
        for (int i = 0; i < 10; i++) {
            checked(producer.send(new Message("JavaLite", "T", "k", bytes("lite" + i))));
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("CGL");
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(ANSWER_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("JavaLite", "*");
        consumer.start();
        int seen = 0;
        long until = System.currentTimeMillis() + 60000;
        while (seen < 10 && System.currentTimeMillis() < until) {
            for (MessageExt message : consumer.poll(1000)) {
                say("lite", text(message), message.getQueueId());
                seen++;
            }
        }
        consumer.commitSync();
    }

    private static void request(boolean waits) throws Exception {
        DefaultMQProducer producer = producer("PGQ");
        DefaultMQProducer replier = producer("PGA");
        checked(producer.send(new Message("JavaRequest", "T", "k", bytes("first"))));
        DefaultMQPushConsumer consumer = consumer("CGQ", "request");
        consumer.subscribe("JavaRequest", "*");
        ConcurrentLinkedQueue<Throwable> errors = new ConcurrentLinkedQueue<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    if (message.getProperty("CORRELATION_ID") != null) {
                        byte[] answer = bytes("re: " + text(message));
                        checked(replier.send(MessageUtil.createReplyMessage(message, answer)));
                    }
                } catch (Throwable error) {
                    errors.add(error);
                    error.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(2000); // replies find a producer by its heartbeat, the first of which comes after a second
        if (waits) {
            Message ask = new Message("JavaRequest", "T", "k", bytes("ask"));
            say("request", text(producer.request(ask, 30000)), errors.size());
        }
        CountDownLatch answered = new CountDownLatch(1);
        producer.request(new Message("JavaRequest", "T", "k", bytes("called")), new RequestCallback() {
            @Override
            public void onSuccess(Message answer) {
                say("callback", text(answer), errors.size());
                answered.countDown();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
            }
        }, 30000);
        await(answered);
    }
}
