package firetrail.interop;

import java.io.IOException;
import java.util.Collection;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.filter.FilterAPI;
import org.apache.rocketmq.logging.inner.Level;
import org.apache.rocketmq.logging.inner.Logger;
import org.apache.rocketmq.logging.inner.SysLogger;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What differs between the release lines; this is the 4.x side. */
final class Line {
    private Line() {
    }

    /** Called once before anything else: silences the logging library that 4.x brings along. */
    static void prepare() {
        SysLogger.setQuietMode(true);
        Logger.getRootLogger().setLevel(Level.OFF);
    }

    static DefaultMessageStore create(MessageStoreConfig config) throws IOException {
        BrokerStatsManager stats = new BrokerStatsManager("firetrail", false);
        // The 4.x store delivers due delayed messages by itself, which would change the store under
        // a reader. Delivery is a broker's work (5.x moved it there), so it stays switched off.
        return new DefaultMessageStore(config, stats, (topic, queue, offset, tags, time, map, props) -> { },
            new BrokerConfig()) {
            @Override
            public void handleScheduleMessageService(BrokerRole role) {
            }
        };
    }

    static void enablePropertyCrc(MessageStoreConfig config) {
        throw new UsageError("--prop-crc needs v5: the 4.x store has no property CRC");
    }

    static MessageFilter tagFilter(String topic, String expression) throws Exception {
        return new DefaultMessageFilter(FilterAPI.buildSubscriptionData(topic, expression));
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queue, long time, String boundary) {
        if (boundary != null) {
            throw new UsageError("--boundary needs v5: the 4.x store returns the nearest message");
        }
        return store.getOffsetInQueueByTime(topic, queue, time);
    }

    static Map<String, Collection<Integer>> queues(DefaultMessageStore store) {
        Map<String, Collection<Integer>> queues = new TreeMap<>();
        store.getConsumeQueueTable().forEach((topic, table) -> queues.put(topic, table.keySet()));
        return queues;
    }
}
