// RocketMQ's gRPC client for Java: every type of message, push and simple consumers, and check-back
// of transactions. Prints a line of JSON for each message. Arguments: endpoints,
// tls or plain, and messages or delays.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

public class GrpcClient {
    static final long WAIT_MS = 90_000;
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final Map<String, AtomicInteger> GOT = new ConcurrentHashMap<>();

    static ClientConfiguration configuration;

    static String body(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static synchronized void say(String kind, String who, String body, String id, int times) {
        System.out.printf(
                "{\"%s\": \"%s\", \"body\": \"%s\", \"id\": \"%s\", \"times\": %d}%n",
                kind, who, body, id, times);
    }

    static void got(String who, MessageView message) {
        String id = message.getMessageId().toString();
        say("got", who, body(message), id, message.getDeliveryAttempt());
        GOT.computeIfAbsent(who, key -> new AtomicInteger()).incrementAndGet();
    }

    static int count(String who) {
        return GOT.getOrDefault(who, new AtomicInteger()).get();
    }

    static void waitFor(String what, BooleanSupplier condition) throws InterruptedException {
        long end = System.currentTimeMillis() + WAIT_MS;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("no " + what + " in time, only " + GOT);
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

    static void send(Producer producer, String how, String body, Message message)
            throws Exception {
        SendReceipt receipt = producer.send(message);
        say("sent", how, body, receipt.getMessageId().toString(), 0);
    }

    static void sends(Producer producer) throws Exception {
        for (int n = 0; n < 6; n++) {
            String body = "normal" + n;
            String tag = n % 2 == 0 ? "TagA" : "Odd";
            send(producer, "normal", body, message("GrpcNormal", body).setTag(tag).build());
        }
        for (int n = 0; n < 20; n++) {
            String body = String.format("%d-%02d", n % 4, n / 4);
            String group = "order-" + n % 4;
            send(producer, "fifo", body, message("GrpcFifo", body).setMessageGroup(group).build());
        }
        for (String body : List.of("commit", "rollback", "unknown")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("GrpcTransaction", body).build(), transaction);
            if (body.equals("commit")) {
                transaction.commit();
            } else if (body.equals("rollback")) {
                transaction.rollback();
            }
        }
    }

    static PushConsumer push(String who, String group, String topic) throws Exception {
        return PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(group)
                .setSubscriptionExpressions(
                        Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                .setMessageListener(
                        message -> {
                            got(who, message);
                            return ConsumeResult.SUCCESS;
                        })
                .build();
    }

    static void receives() throws Exception {
        FilterExpression tagged = new FilterExpression("TagA");
        boolean isPutOff = false;
        try (SimpleConsumer consumer =
                PROVIDER.newSimpleConsumerBuilder()
                        .setClientConfiguration(configuration)
                        .setConsumerGroup("GrpcSimple")
                        .setAwaitDuration(Duration.ofSeconds(5))
                        .setSubscriptionExpressions(
                                Collections.singletonMap("GrpcNormal", tagged))
                        .build()) {
            long end = System.currentTimeMillis() + WAIT_MS;
            while (count("simple") < 4 && System.currentTimeMillis() < end) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(15))) {
                    got("simple", message);
                    if (body(message).equals("normal0") && !isPutOff) {
                        isPutOff = true;
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(message);
                    }
                }
            }
        }
    }

    static void delays(Producer producer) throws Exception {
        PushConsumer delayed = push("delay", "GrpcDelayed", "GrpcDelay");
        for (String body : List.of("recalled", "later")) {
            long due = System.currentTimeMillis() + (body.equals("later") ? 17_000 : 15_000);
            Message message = message("GrpcDelay", body).setDeliveryTimestamp(due).build();
            SendReceipt receipt = producer.send(message);
            say("sent", "delay", body, receipt.getMessageId().toString(), 0);
            if (body.equals("recalled")) {
                producer.recallMessage("GrpcDelay", receipt.getRecallHandle());
            }
        }
        waitFor("delayed messages", () -> count("delay") >= 1);
        delayed.close();
    }

    static void consumes(Producer producer) throws Exception {
        sends(producer);
        PushConsumer all = push("push", "GrpcPush", "GrpcNormal");
        PushConsumer ordered = push("fifo", "GrpcOrderly", "GrpcFifo");
        PushConsumer halves = push("halves", "GrpcHalves", "GrpcTransaction");
        receives();
        waitFor("pushed messages", () -> count("push") >= 6);
        waitFor("ordered messages", () -> count("fifo") >= 20);
        waitFor("committed messages", () -> count("halves") >= 2);
        for (PushConsumer consumer : List.of(all, ordered, halves)) {
            consumer.close();
        }
    }

    public static void main(String[] arguments) {
        int status = 0;
        try {
            configuration =
                    ClientConfiguration.newBuilder()
                            .setEndpoints(arguments[0])
                            .enableSsl(arguments[1].equals("tls"))
                            .setRequestTimeout(Duration.ofSeconds(10))
                            .build();
            Producer producer =
                    PROVIDER.newProducerBuilder()
                            .setClientConfiguration(configuration)
                            .setTopics("GrpcNormal", "GrpcFifo", "GrpcDelay", "GrpcTransaction")
                            .setTransactionChecker(
                                    message -> {
                                        got("check", message);
                                        return TransactionResolution.COMMIT;
                                    })
                            .build();
            if (arguments[2].equals("delays")) {
                delays(producer);
            } else {
                consumes(producer);
            }
            producer.close();
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        System.exit(status); // threads of the client keep the process alive
    }
}
