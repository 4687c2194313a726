package firetrail.interop;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.hook.PutMessageHook;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.rocksdb.NativeLibraryLoader;

/** What differs between the release lines; this is the 5.x side. */
final class Line {
    private Line() {
    }

    /**
     * Called once before anything else. Logging is silenced by rmq.logback.xml on the class path. The store
     * loads RocksDB's library from a 13 MB copy that a halted process would leave behind: load it here and
     * remove the copy at once.
     */
    static void prepare() throws IOException {
        Path folder = Files.createTempDirectory("firetrail-rocksdb");
        NativeLibraryLoader.getInstance().loadLibrary(folder.toString());
        try (DirectoryStream<Path> copies = Files.newDirectoryStream(folder)) {
            for (Path copy : copies) {
                Files.delete(copy);
            }
        }
        Files.delete(folder);
    }

    static DefaultMessageStore create(MessageStoreConfig config) throws IOException {
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager stats = new BrokerStatsManager("firetrail", false);
        DefaultMessageStore store = new DefaultMessageStore(config, stats,
            (topic, queue, offset, tags, time, map, props) -> { }, broker, new ConcurrentHashMap<>());
        store.getPutMessageHookList().add(new DelayHook(store));
        return store;
    }

    static void enablePropertyCrc(MessageStoreConfig config) {
        config.setEnabledAppendPropCRC(true);
    }

    static MessageFilter tagFilter(String topic, String expression) throws Exception {
        return new DefaultMessageFilter(FilterAPI.buildSubscriptionData(topic, expression));
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queue, long time, String boundary) {
        BoundaryType type = "upper".equals(boundary) ? BoundaryType.UPPER : BoundaryType.LOWER;
        return store.getOffsetInQueueByTime(topic, queue, time, type);
    }

    static Map<String, Collection<Integer>> queues(DefaultMessageStore store) {
        Map<String, Collection<Integer>> queues = new TreeMap<>();
        store.getConsumeQueueTable().forEach((topic, table) -> queues.put(topic, table.keySet()));
        return queues;
    }

    /** The delay rewrite, which 4.x does inside the store and 5.x in a hook that the broker installs. */
    private static final class DelayHook implements PutMessageHook {
        private final DefaultMessageStore store;

        DelayHook(DefaultMessageStore store) {
            this.store = store;
        }

        @Override
        public String hookName() {
            return "delay";
        }

        @Override
        public PutMessageResult executeBeforePutMessage(MessageExt message) {
            int transaction = MessageSysFlag.getTransactionValue(message.getSysFlag());
            boolean visible = transaction == MessageSysFlag.TRANSACTION_NOT_TYPE
                || transaction == MessageSysFlag.TRANSACTION_COMMIT_TYPE;
            if (!visible || message.getDelayTimeLevel() <= 0 || !(message instanceof MessageExtBrokerInner)) {
                return null;
            }
            int level = Math.min(message.getDelayTimeLevel(), store.getMaxDelayLevel());
            message.setDelayTimeLevel(level);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_TOPIC, message.getTopic());
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_REAL_QUEUE_ID,
                String.valueOf(message.getQueueId()));
            ((MessageExtBrokerInner) message).setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            message.setTopic(TopicValidator.RMQ_SYS_SCHEDULE_TOPIC);
            message.setQueueId(level - 1);
            return null;
        }
    }
}
