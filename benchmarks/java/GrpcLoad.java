import apache.rocketmq.v2.AckMessageEntry;
import apache.rocketmq.v2.AckMessageRequest;
import apache.rocketmq.v2.AckMessageResponse;
import apache.rocketmq.v2.Broker;
import apache.rocketmq.v2.ClientType;
import apache.rocketmq.v2.Code;
import apache.rocketmq.v2.Encoding;
import apache.rocketmq.v2.FilterExpression;
import apache.rocketmq.v2.FilterType;
import apache.rocketmq.v2.HeartbeatRequest;
import apache.rocketmq.v2.Message;
import apache.rocketmq.v2.MessageQueue;
import apache.rocketmq.v2.MessageType;
import apache.rocketmq.v2.MessagingServiceGrpc;
import apache.rocketmq.v2.MessagingServiceGrpc.MessagingServiceStub;
import apache.rocketmq.v2.ReceiveMessageRequest;
import apache.rocketmq.v2.ReceiveMessageResponse;
import apache.rocketmq.v2.Resource;
import apache.rocketmq.v2.SendMessageRequest;
import apache.rocketmq.v2.SendMessageResponse;
import apache.rocketmq.v2.Settings;
import apache.rocketmq.v2.Subscription;
import apache.rocketmq.v2.SubscriptionEntry;
import apache.rocketmq.v2.SystemProperties;
import apache.rocketmq.v2.TelemetryCommand;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import com.google.protobuf.Timestamp;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.StreamObserver;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

/**
 * Load for a gRPC service of RocketMQ: the calls that released clients make, by grpc-java and the published stubs, with
 * callbacks instead of threads that wait. One process does everything, so that its code is compiled once. The program
 * prints one line of JSON.
 *
 * <pre>
 * ADDRESS PID WARM MESSAGES RATE RELAYED    PID is the server, whose CPU time is read
 * </pre>
 *
 * Topics "GrpcSend" and "GrpcRelay" must exist. MESSAGES are sent, after WARM others; all are received, 32 at a time,
 * and acknowledged one by one, as released clients do; then RELAYED are sent at RATE per second while they are received.
 */
public class GrpcLoad {
    private static final int CHANNELS = 4;
    private static final int SENDS_IN_FLIGHT = 64;
    private static final int RECEIVES_IN_FLIGHT = 4;
    private static final int BATCH = 32;
    private static final int SIZE = 1024;
    private static final int FIRST = 64; // messages that give every queue an offset of the group
    private static final int STALLED_S = 120;
    private static final int HEARTBEAT_S = 10;
    private static final Duration INVISIBLE = Duration.newBuilder().setSeconds(60).build();
    private static final Duration POLLING = Duration.newBuilder().setSeconds(10).build();

    private static final List<ManagedChannel> channels = new ArrayList<>();
    private static final AtomicLong numbers = new AtomicLong();
    private static final ScheduledExecutorService heartbeats = Executors.newSingleThreadScheduledExecutor();
    private static Path serverStat;
    private static final AtomicReference<Throwable> failure = new AtomicReference<>();

    public static void main(String[] arguments) throws Exception {
        serverStat = Path.of("/proc", arguments[1], "stat");
        int warm = Integer.parseInt(arguments[2]);
        int messages = Integer.parseInt(arguments[3]);
        int rate = Integer.parseInt(arguments[4]);
        int relayed = Integer.parseInt(arguments[5]);
        for (int i = 0; i < CHANNELS; i++) {
            channels.add(NettyChannelBuilder.forTarget(arguments[0]).usePlaintext().directExecutor().build());
        }
        try {
            StringBuilder figures = new StringBuilder();
            Consumer consumer = new Consumer("GrpcSend");
            consumer.open();
            new Sends("GrpcSend", FIRST + warm).run();
            System.err.println("send");
            figures.append(new Sends("GrpcSend", messages).run().json("send"));
            int all = FIRST + warm + messages;
            consumer.start(RECEIVES_IN_FLIGHT);
            consumer.acknowledged.await(all - messages);
            System.err.println("receive");
            Usage usage = new Usage();
            long first = consumer.acknowledged.count.get();
            consumer.acknowledged.await(all);
            usage.stop((int) (all - first));
            consumer.over = true;
            figures.append(usage.json("receive"));
            figures.append(relay(rate, relayed));
            System.out.println("{" + figures.substring(2) + "}");
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.out.flush();
        System.exit(0);
    }

    private static String relay(int rate, int relayed) throws Exception {
        int warm = relayed / 4;
        long[] latencies = new long[warm + relayed];
        Consumer consumer = new Consumer("GrpcRelay");
        consumer.latencies = latencies;
        consumer.open();
        new Sends("GrpcRelay", FIRST).run();
        consumer.start(RECEIVES_IN_FLIGHT);
        consumer.acknowledged.await(FIRST);
        System.err.println("relay");
        long began = System.nanoTime();
        Usage usage = new Usage();
        for (int n = 0; n < latencies.length; n++) {
            if (n == warm) {
                usage = new Usage();
            }
            long due = began + n * 1_000_000_000L / rate;
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            byte[] body = new byte[SIZE];
            ByteBuffer.wrap(body).putLong(due).putInt(n);
            stub(n, "producer").sendMessage(sending("GrpcRelay", body), new Sent());
        }
        consumer.acknowledged.await(FIRST + latencies.length);
        usage.stop(relayed);
        long[] measured = Arrays.copyOfRange(latencies, warm, latencies.length);
        Arrays.sort(measured);
        consumer.over = true;
        return String.format(
                ", \"p50_s\": %.6f, \"p99_s\": %.6f, \"max_s\": %.6f",
                measured[measured.length / 2] / 1e9,
                measured[measured.length * 99 / 100] / 1e9,
                measured[measured.length - 1] / 1e9)
                + usage.json("relay");
    }

    /** Sends of many messages, some of them at a time. */
    private static class Sends {
        private final String topic;
        private final Progress done = new Progress();
        private final AtomicInteger next = new AtomicInteger();
        private final int messages;
        private final byte[] body = new byte[SIZE];

        Sends(String topic, int messages) {
            this.topic = topic;
            this.messages = messages;
        }

        Usage run() throws Exception {
            Usage usage = new Usage();
            for (int i = 0; i < SENDS_IN_FLIGHT; i++) {
                send(i);
            }
            done.await(messages);
            usage.stop(messages);
            return usage;
        }

        private void send(int slot) {
            if (next.getAndIncrement() >= messages) {
                return;
            }
            stub(slot, "producer").sendMessage(sending(topic, body), new Sent() {
                @Override
                public void onCompleted() {
                    done.add();
                    send(slot);
                }
            });
        }
    }

    private static class Sent implements StreamObserver<SendMessageResponse> {
        @Override
        public void onNext(SendMessageResponse response) {
            expect(response.getStatus().getCode() == Code.OK, response);
        }

        @Override
        public void onError(Throwable error) {
            failure.set(error);
        }

        @Override
        public void onCompleted() {
        }
    }

    /** A consumer with a telemetry stream, heartbeats, and some receives at a time. */
    private static class Consumer {
        private final String topic;
        private final Resource group;
        private final String clientId;
        final Progress acknowledged = new Progress();
        volatile boolean over;
        long[] latencies;

        Consumer(String topic) {
            this.topic = topic;
            group = Resource.newBuilder().setName("group-" + topic).build();
            clientId = "consumer-" + topic;
        }

        /** Introduce the consumer; Java's proxy refuses receives of a client without settings. */
        void open() throws Exception {
            CountDownLatch known = new CountDownLatch(1);
            StreamObserver<TelemetryCommand> stream = stub(0, clientId).telemetry(new StreamObserver<>() {
                @Override
                public void onNext(TelemetryCommand command) {
                    known.countDown();
                }

                @Override
                public void onError(Throwable error) {
                    failure.set(error);
                }

                @Override
                public void onCompleted() {
                }
            });
            SubscriptionEntry entry = SubscriptionEntry.newBuilder().setTopic(resource(topic)).setExpression(all()).build();
            Subscription subscription = Subscription.newBuilder().setGroup(group).addSubscriptions(entry).build();
            Settings settings = Settings.newBuilder()
                    .setClientType(ClientType.SIMPLE_CONSUMER)
                    .setRequestTimeout(Duration.newBuilder().setSeconds(3))
                    .setSubscription(subscription)
                    .build();
            stream.onNext(TelemetryCommand.newBuilder().setSettings(settings).build());
            expect(known.await(STALLED_S, TimeUnit.SECONDS), "no settings");
            heartbeats.scheduleAtFixedRate(this::beat, 0, HEARTBEAT_S, TimeUnit.SECONDS);
        }

        private void beat() {
            HeartbeatRequest request =
                    HeartbeatRequest.newBuilder().setGroup(group).setClientType(ClientType.SIMPLE_CONSUMER).build();
            stub(0, clientId).heartbeat(request, new Ignored<>());
        }

        void start(int receives) {
            for (int i = 0; i < receives; i++) {
                receive(i);
            }
        }

        private void receive(int slot) {
            if (over) {
                return;
            }
            MessageQueue queue = MessageQueue.newBuilder()
                    .setTopic(resource(topic))
                    .setId(-1)
                    .setBroker(Broker.newBuilder().setName(brokerName))
                    .build();
            ReceiveMessageRequest request = ReceiveMessageRequest.newBuilder()
                    .setGroup(group)
                    .setMessageQueue(queue)
                    .setFilterExpression(all())
                    .setBatchSize(BATCH)
                    .setInvisibleDuration(INVISIBLE)
                    .setLongPollingTimeout(POLLING)
                    .build();
            stub(slot, clientId).withDeadlineAfter(POLLING.getSeconds() + 5, TimeUnit.SECONDS)
                    .receiveMessage(request, new Received(slot));
        }

        private class Received implements StreamObserver<ReceiveMessageResponse> {
            private final int slot;
            private final List<Message> messages = new ArrayList<>(BATCH);

            Received(int slot) {
                this.slot = slot;
            }

            @Override
            public void onNext(ReceiveMessageResponse response) {
                if (response.hasMessage()) {
                    Message message = response.getMessage();
                    if (latencies != null) {
                        note(message.getBody().asReadOnlyByteBuffer());
                    }
                    messages.add(message);
                } else if (response.hasStatus()) {
                    Code code = response.getStatus().getCode();
                    expect(over || code == Code.OK || code == Code.MESSAGE_NOT_FOUND, response);
                }
            }

            private void note(ByteBuffer body) {
                long due = body.getLong();
                if (due != 0) {
                    latencies[body.getInt()] = System.nanoTime() - due;
                }
            }

            @Override
            public void onError(Throwable error) {
                if (!over) {
                    failure.set(error);
                }
            }

            /** Acknowledge the messages; if the rate counts, then only ask for more when that is done. */
            @Override
            public void onCompleted() {
                boolean later = latencies == null && !messages.isEmpty();
                AtomicInteger left = new AtomicInteger(messages.size());
                for (Message message : messages) {
                    stub(slot, clientId).ackMessage(acknowledging(message), new Ignored<AckMessageResponse>() {
                        @Override
                        public void onNext(AckMessageResponse response) {
                            expect(response.getStatus().getCode() == Code.OK, response);
                            acknowledged.add();
                            if (left.decrementAndGet() == 0 && later) {
                                receive(slot);
                            }
                        }

                        @Override
                        public void onError(Throwable error) {
                            failure.set(error);
                        }
                    });
                }
                if (!later) {
                    receive(slot);
                }
            }
        }

        private AckMessageRequest acknowledging(Message message) {
            SystemProperties properties = message.getSystemProperties();
            AckMessageEntry entry = AckMessageEntry.newBuilder()
                    .setMessageId(properties.getMessageId())
                    .setReceiptHandle(properties.getReceiptHandle())
                    .build();
            return AckMessageRequest.newBuilder().setGroup(group).setTopic(resource(topic)).addEntries(entry).build();
        }
    }

    private static class Ignored<T> implements StreamObserver<T> {
        @Override
        public void onNext(T response) {
        }

        @Override
        public void onError(Throwable error) {
        }

        @Override
        public void onCompleted() {
        }
    }

    /** A number that grows, and a thread that waits for it. */
    private static class Progress {
        final AtomicLong count = new AtomicLong();

        void add() {
            count.incrementAndGet();
        }

        void await(long wanted) {
            long before = -1;
            long changed = System.nanoTime();
            while (count.get() < wanted) {
                if (failure.get() != null) {
                    throw new IllegalStateException(failure.get());
                }
                if (count.get() != before) {
                    before = count.get();
                    changed = System.nanoTime();
                }
                expect(System.nanoTime() - changed < STALLED_S * 1_000_000_000L, "stalled at " + before + " of " + wanted);
                LockSupport.parkNanos(1_000_000);
            }
        }
    }

    /** The time, and the CPU times of server and client, of a number of messages. */
    private static class Usage {
        private final long began = System.nanoTime();
        private final double serverBefore = serverCpu();
        private final double clientBefore = clientCpu();
        private double seconds;
        private double server;
        private double client;
        private int messages;

        void stop(int messages) {
            seconds = (System.nanoTime() - began) / 1e9;
            server = serverCpu() - serverBefore;
            client = clientCpu() - clientBefore;
            this.messages = messages;
        }

        String json(String name) {
            return String.format(
                    ", \"%s\": %.1f, \"%s_cpu_s\": %.9f, \"%s_client_s\": %.9f",
                    name, messages / seconds, name, server / messages, name, client / messages);
        }

        private static double serverCpu() {
            try {
                String stat = Files.readString(serverStat);
                String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
                return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / 100.0;
            } catch (java.io.IOException error) {
                throw new IllegalStateException("the server has ended", error);
            }
        }

        private static double clientCpu() {
            return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                    .getProcessCpuTime() / 1e9;
        }
    }

    private static void expect(boolean condition, Object what) {
        if (!condition) {
            IllegalStateException error = new IllegalStateException(String.valueOf(what));
            failure.compareAndSet(null, error);
            throw error;
        }
    }

    private static final String brokerName = "broker-a";

    private static Resource resource(String name) {
        return Resource.newBuilder().setName(name).build();
    }

    private static FilterExpression all() {
        return FilterExpression.newBuilder().setType(FilterType.TAG).setExpression("*").build();
    }

    private static SendMessageRequest sending(String topic, byte[] body) {
        Instant now = Instant.now();
        SystemProperties properties = SystemProperties.newBuilder()
                .setMessageId(String.format("01000000000000%020X", numbers.incrementAndGet()))
                .setBodyEncoding(Encoding.IDENTITY)
                .setMessageType(MessageType.NORMAL)
                .setBornTimestamp(Timestamp.newBuilder().setSeconds(now.getEpochSecond()).setNanos(now.getNano()))
                .setBornHost("client")
                .setTag("tagA")
                .build();
        Message message = Message.newBuilder()
                .setTopic(resource(topic))
                .setSystemProperties(properties)
                .setBody(ByteString.copyFrom(body))
                .build();
        return SendMessageRequest.newBuilder().addMessages(message).build();
    }

    private static MessagingServiceStub stub(int slot, String clientId) {
        Channel channel = channels.get(slot % CHANNELS);
        return MessagingServiceGrpc.newStub(channel).withInterceptors(new Introduction(clientId));
    }

    /** The metadata of RocketMQ's clients. */
    private static class Introduction implements ClientInterceptor {
        private final String clientId;

        Introduction(String clientId) {
            this.clientId = clientId;
        }

        @Override
        public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
            return new ForwardingClientCall.SimpleForwardingClientCall<>(next.newCall(method, options)) {
                @Override
                public void start(Listener<R> listener, Metadata headers) {
                    put(headers, "x-mq-client-id", clientId);
                    put(headers, "x-mq-language", "JAVA");
                    put(headers, "x-mq-protocol", "GRPC_V2");
                    put(headers, "x-mq-client-version", "5.0.8");
                    put(headers, "x-mq-namespace", "");
                    put(headers, "x-mq-request-id", UUID.randomUUID().toString());
                    put(headers, "x-mq-date-time", Instant.now().toString());
                    super.start(listener, headers);
                }
            };
        }

        private static void put(Metadata headers, String name, String value) {
            headers.put(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER), value);
        }
    }
}
