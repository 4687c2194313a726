// RocketMQ's gRPC client for Java: every type of message, push and simple consumers, check-back of
// transactions, and a kill of the server. Prints a line of JSON for each message. Arguments:
// endpoints, tls or plain, messages or features, and the prefix of topics and groups if it is not
// Grpc. After "ready", a line on standard input lets the program go on when the server was started
// again.
// If the environment has CLIENT_USER and CLIENT_PASSWORD, all calls are signed; if it has
// CLIENT_TOPIC, the program only sends a message to this topic and consumes it.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class GrpcClient {
    static final long WAIT_MS = 90_000;
    static final long DELAY_MS = 4_000;
    static final Duration AWAIT = Duration.ofSeconds(5);
    static final Duration INVISIBLE = Duration.ofSeconds(15);
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Map<String, AtomicInteger> GOT = new ConcurrentHashMap<>();

    static ClientConfiguration configuration;
    static String prefix = "Grpc";

    static String body(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static synchronized void say(String format, Object... values) {
        System.out.printf(format + "%n", values);
    }

    static String seconds(long millis) {
        return String.format("%d.%03d", millis / 1000, millis % 1000);
    }

    static void got(String who, MessageView message) {
        say(
                "{\"got\": \"%s\", \"body\": \"%s\", \"id\": \"%s\", \"times\": %d, \"at\": %s}",
                who,
                body(message),
                message.getMessageId(),
                message.getDeliveryAttempt(),
                seconds(System.currentTimeMillis()));
        GOT.computeIfAbsent(who, key -> new AtomicInteger()).incrementAndGet();
    }

    static int count(String who) {
        return GOT.getOrDefault(who, new AtomicInteger()).get();
    }

    static void until(String who, int count) throws InterruptedException {
        for (long end = System.currentTimeMillis() + WAIT_MS; count(who) < count; ) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException(who + " got too little: " + GOT);
            }
            Thread.sleep(20);
        }
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder()
                .setTopic(topic)
                .setKeys("key-" + body)
                .setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static SendReceipt send(Producer producer, String how, String body, MessageBuilder message)
            throws ClientException {
        SendReceipt receipt = producer.send(message.build());
        say(
                "{\"sent\": \"%s\", \"body\": \"%s\", \"id\": \"%s\"}",
                how, body, receipt.getMessageId());
        return receipt;
    }

    static void sends(Producer producer) throws Exception {
        for (int n = 0; n < 6; n++) {
            String body = "normal" + n;
            String tag = n % 2 == 0 ? "TagA" : "Odd";
            send(producer, "normal", body, message(prefix + "Normal", body).setTag(tag));
        }
        for (int n = 0; n < 20; n++) {
            String body = String.format("%d-%02d", n % 4, n / 4);
            String group = "order-" + n % 4;
            send(producer, "fifo", body, message(prefix + "Fifo", body).setMessageGroup(group));
        }
        for (String body : List.of("commit", "rollback", "unknown")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message(prefix + "Transaction", body).build(), transaction);
            if (body.equals("commit")) {
                transaction.commit();
            } else if (body.equals("rollback")) {
                transaction.rollback();
            }
        }
    }

    static PushConsumer push(
            String who,
            String group,
            String topic,
            FilterExpression filter,
            Function<MessageView, ConsumeResult> consume)
            throws ClientException {
        return PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setSubscriptionExpressions(Collections.singletonMap(topic, filter))
                .setMessageListener(
                        message -> {
                            got(who, message);
                            return consume.apply(message);
                        })
                .build();
    }

    static PushConsumer push(String who, String group, String topic) throws ClientException {
        return push(who, group, topic, FilterExpression.SUB_ALL, message -> ConsumeResult.SUCCESS);
    }

    // The topic of dead letters exists only after the first one.
    static SimpleConsumer simple(String group, String topic, FilterExpression filter)
            throws Exception {
        for (long end = System.currentTimeMillis() + WAIT_MS; ; Thread.sleep(200)) {
            try {
                return PROVIDER.newSimpleConsumerBuilder()
                        .setClientConfiguration(configuration)
                        .setConsumerGroup(group)
                        .setAwaitDuration(AWAIT)
                        .setSubscriptionExpressions(Collections.singletonMap(topic, filter))
                        .build();
            } catch (ClientException | IllegalStateException error) {
                if (System.currentTimeMillis() > end) {
                    throw error;
                }
            }
        }
    }

    // Receives and acknowledges messages; the first one with the body "putOff" is put off.
    static void receive(SimpleConsumer consumer, String who, int count, String putOff)
            throws Exception {
        boolean isPutOff = false;
        long end = System.currentTimeMillis() + WAIT_MS;
        while (count(who) < count && System.currentTimeMillis() < end) {
            for (MessageView message : consumer.receive(16, INVISIBLE)) {
                got(who, message);
                if (body(message).equals(putOff) && !isPutOff) {
                    isPutOff = true;
                    consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                } else {
                    consumer.ack(message);
                }
            }
        }
        consumer.close();
    }

    static void messages(Producer producer) throws Exception {
        sends(producer);
        push("push", prefix + "Push", prefix + "Normal");
        push("fifo", prefix + "Orderly", prefix + "Fifo");
        push("halves", prefix + "Halves", prefix + "Transaction");
        FilterExpression tagged = new FilterExpression("TagA");
        receive(simple(prefix + "Simple", prefix + "Normal", tagged), "simple", 4, "normal0");
        until("push", 6);
        until("fifo", 20);
        until("halves", 2);
        // Acknowledgements are sent after the listener has returned. To close a consumer takes as
        // long as a receive waits.
        Thread.sleep(1000);
    }

    static Void filtered(Producer producer) throws Exception {
        for (int n = 0; n < 6; n++) {
            MessageBuilder made = message(prefix + "Normal", "n" + n);
            made.addProperty("colour", "blue").addProperty("n", String.valueOf(n));
            send(producer, "numbered", "n" + n, made);
        }
        FilterExpression condition =
                new FilterExpression("n > 2 AND colour = 'blue'", FilterExpressionType.SQL92);
        receive(simple(prefix + "Sql", prefix + "Normal", condition), "sql", 3, null);
        return null;
    }

    static Void ordered(Producer producer) throws Exception {
        for (String body : List.of("k0", "again-k1", "k2", "k3")) {
            send(producer, "keep", body, message(prefix + "Fifo", body).setMessageGroup("keep"));
        }
        AtomicBoolean hasFailed = new AtomicBoolean();
        push(
                "ordered",
                prefix + "Orderly",
                prefix + "Fifo",
                FilterExpression.SUB_ALL,
                message -> {
                    boolean isWanted = body(message).equals("again-k1");
                    return isWanted && hasFailed.compareAndSet(false, true)
                            ? ConsumeResult.FAILURE
                            : ConsumeResult.SUCCESS;
                });
        until("ordered", 5);
        return null;
    }

    // A message that its consumers never consume is received as a dead letter.
    static Void failing(Producer producer) throws Exception {
        send(producer, "failing", "fails", message(prefix + "Failing", "fails"));
        push(
                "failing",
                prefix + "FailingGroup",
                prefix + "Failing",
                FilterExpression.SUB_ALL,
                message -> ConsumeResult.FAILURE);
        until("failing", 2);
        String dead = "%DLQ%" + prefix + "FailingGroup";
        receive(simple(prefix + "Undertaker", dead, FilterExpression.SUB_ALL), "dead", 1, null);
        return null;
    }

    static Void delayed(Producer producer) throws Exception {
        push("delayed", prefix + "DelayGroup", prefix + "Delay");
        for (String body : List.of("later", "recalled", "past")) {
            long due = System.currentTimeMillis() + (body.equals("past") ? -DELAY_MS : DELAY_MS);
            MessageBuilder made = message(prefix + "Delay", body).setDeliveryTimestamp(due);
            SendReceipt receipt = producer.send(made.build());
            String id = receipt.getMessageId().toString();
            say(
                    "{\"sent\": \"%s\", \"body\": \"%s\", \"id\": \"%s\", \"due\": %s}",
                    body, body, id, seconds(due));
            if (body.equals("recalled")) {
                String handle = receipt.getRecallHandle();
                say(
                        "{\"recalled\": \"%s\", \"id\": \"%s\"}",
                        producer.recallMessage(prefix + "Delay", handle).getMessageId(), id);
            }
        }
        until("delayed", 2);
        return null;
    }

    static void restarted(Producer producer) throws Exception {
        FilterExpression tagged = new FilterExpression("Restart");
        push(
                "restart",
                prefix + "Restart",
                prefix + "Normal",
                tagged,
                message -> ConsumeResult.SUCCESS);
        MessageBuilder before = message(prefix + "Normal", "before");
        send(producer, "restart", "before", before.setTag("Restart"));
        until("restart", 1);
        say("{\"ready\": \"restart\"}");
        System.in.read();
        for (long end = System.currentTimeMillis() + WAIT_MS; ; Thread.sleep(500)) {
            try {
                producer.send(message(prefix + "Normal", "after").setTag("Restart").build());
                break;
            } catch (Exception error) { // also the exceptions of gRPC itself
                if (System.currentTimeMillis() > end) {
                    throw error;
                }
            }
        }
        until("restart", 2);
    }

    // The listener fails once, so that the message is delivered again. The program is killed.
    static void one(String topic) throws Exception {
        Producer producer =
                PROVIDER.newProducerBuilder()
                        .setClientConfiguration(configuration)
                        .setTopics(topic)
                        .build();
        send(producer, "normal", "signed", message(topic, "signed"));
        push(
                "secured",
                "JAVA_GRPC_SECURED",
                topic,
                FilterExpression.SUB_ALL,
                message ->
                        message.getDeliveryAttempt() == 1
                                ? ConsumeResult.FAILURE
                                : ConsumeResult.SUCCESS);
        until("secured", 2);
        say("{\"ready\": \"secured\"}");
        System.in.read();
    }

    static void everything(String part) throws Exception {
        Producer producer =
                PROVIDER.newProducerBuilder()
                        .setClientConfiguration(configuration)
                        .setTopics(
                                prefix + "Normal",
                                prefix + "Fifo",
                                prefix + "Delay",
                                prefix + "Transaction")
                        .setTransactionChecker(
                                message -> {
                                    got("check", message);
                                    return body(message).equals("rollback")
                                            ? TransactionResolution.ROLLBACK
                                            : TransactionResolution.COMMIT;
                                })
                        .build();
        if (part.equals("features")) {
            features(producer);
        } else {
            messages(producer);
            producer.close();
        }
    }

    static void features(Producer producer) throws Exception {
        ExecutorService pool = Executors.newCachedThreadPool();
        List<Callable<Void>> parts =
                List.of(
                        () -> filtered(producer),
                        () -> ordered(producer),
                        () -> failing(producer),
                        () -> delayed(producer));
        for (Future<Void> part : pool.invokeAll(parts)) {
            part.get();
        }
        restarted(producer);
        Thread.sleep(1000); // acknowledgements are sent after the listener has returned
    }

    public static void main(String[] arguments) {
        int status = 0;
        try {
            if (arguments.length > 3) {
                prefix = arguments[3];
            }
            ClientConfigurationBuilder builder =
                    ClientConfiguration.newBuilder()
                            .setEndpoints(arguments[0])
                            .enableSsl(arguments[1].equals("tls"))
                            .setRequestTimeout(Duration.ofSeconds(10));
            Map<String, String> given = System.getenv();
            if (given.containsKey("CLIENT_USER")) {
                builder.setCredentialProvider(
                        new StaticSessionCredentialsProvider(
                                given.get("CLIENT_USER"), given.get("CLIENT_PASSWORD")));
            }
            configuration = builder.build();
            if (given.containsKey("CLIENT_TOPIC")) {
                one(given.get("CLIENT_TOPIC"));
            } else {
                everything(arguments[2]);
            }
            say("{\"done\": true}");
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        System.exit(status); // threads of the client keep the process alive
    }
}
