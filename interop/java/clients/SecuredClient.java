import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's Java client with credentials. Prints a line for each attempt: {@code what TAB outcome},
 * where the outcome is SEND_OK, the body that was received, or the code of the refusal. After a
 * refusal by the broker, another TAB and its text follow.
 * Arguments: name server, user, password, topic that the user may use, its group, another topic. With
 * the system property {@code trace}, the clients with the right key trace their messages. They would
 * drop traces that are not sent yet when they are shut down, so they run to the end of standard input.
 */
public class SecuredClient {
    private static final int ANSWER_MS = 30_000; // the default of 3 s is short on a busy machine

    private static final boolean TRACE = Boolean.getBoolean("trace");

    public static void main(String[] arguments) {
        try {
            play(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1); // the clients' threads would keep running
        }
        System.out.flush();
        System.exit(0);
    }

    private static void play(String[] arguments) throws Exception {
        String namesrv = arguments[0];
        String topic = arguments[3];
        RPCHook right = new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2]));
        RPCHook wrong = new AclClientRPCHook(new SessionCredentials(arguments[1], "not the password"));
        say("right", send(namesrv, right, topic, TRACE));
        say("other topic", send(namesrv, right, arguments[5], false));
        say("wrong key", send(namesrv, wrong, topic, false));
        say("no key", send(namesrv, null, topic, false));
        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            arguments[4], right, new AllocateMessageQueueAveragely(), TRACE, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(ANSWER_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            say("received", new String(messages.get(0).getBody(), StandardCharsets.UTF_8));
            received.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!received.await(60, TimeUnit.SECONDS)) {
            say("received", "nothing");
        }
        if (TRACE) {
            System.in.read();
        } else {
            consumer.shutdown();
        }
    }

    private static String send(String namesrv, RPCHook hook, String topic, boolean trace)
        throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("secured-producer", hook, trace, null);
        producer.setInstanceName("producer-" + System.nanoTime());
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(ANSWER_MS);
        producer.setSendMsgTimeout(ANSWER_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            byte[] body = "for your eyes only".getBytes(StandardCharsets.UTF_8);
            return producer.send(new Message(topic, body)).getSendStatus().name();
        } catch (MQBrokerException error) {
            return refusal(error);
        } catch (MQClientException error) {
            Throwable cause = error.getCause();
            if (cause instanceof MQBrokerException) {
                return refusal((MQBrokerException) cause);
            }
            return "code " + error.getResponseCode();
        } finally {
            if (!trace) {
                producer.shutdown();
            }
        }
    }

    private static String refusal(MQBrokerException error) {
        String text = error.getErrorMessage();
        return "code " + error.getResponseCode() + "\t" + (text == null ? "" : text.split("\n")[0]);
    }

    private static synchronized void say(String what, String outcome) {
        System.out.println(what + "\t" + outcome);
    }
}
