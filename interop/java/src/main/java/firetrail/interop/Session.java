package firetrail.interop;

import java.io.File;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** An open message store, configured from the options, with the end of what was put through it. */
final class Session implements AutoCloseable {
    /** Ten years: nothing expires under a test. */
    private static final int KEEP_HOURS = 24 * 3650;

    final DefaultMessageStore store;
    private final boolean kill;
    private long end;

    private Session(DefaultMessageStore store, boolean kill) {
        this.store = store;
        this.kill = kill;
    }

    static MessageStoreConfig configure(String root, Options options) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(options.text("log-paths", root + File.separator + "commitlog"));
        config.setReadOnlyCommitLogStorePaths(options.text("read-only-paths", null));
        config.setEnableConsumeQueueExt(options.has("ext"));
        config.setMappedFileSizeCommitLog(options.count("log-size", config.getMappedFileSizeCommitLog()));
        config.setMappedFileSizeConsumeQueue(options.count("queue-size", 6_000_000));
        config.setMaxHashSlotNum(options.count("slots", config.getMaxHashSlotNum()));
        config.setMaxIndexNum(options.count("entries", config.getMaxIndexNum()));
        config.setFlushDiskType(flushType(options.text("flush", "async")));
        config.setTransientStorePoolEnable(options.has("pool"));
        if (options.has("prop-crc")) {
            Line.enablePropertyCrc(config);
        }
        config.setEnableLmq(options.has("lmq"));
        config.setEnableMultiDispatch(options.has("lmq"));
        config.setHaListenPort(0);
        config.setFileReservedTime(KEEP_HOURS);
        return config;
    }

    private static FlushDiskType flushType(String name) {
        switch (name) {
            case "sync":
                return FlushDiskType.SYNC_FLUSH;
            case "async":
                return FlushDiskType.ASYNC_FLUSH;
            default:
                throw new UsageError("option --flush is '" + name + "'; it must be sync or async");
        }
    }

    static Session open(String root, Options options) throws Exception {
        DefaultMessageStore store = create(configure(root, options));
        load(store, root);
        store.start();
        return new Session(store, options.has("kill"));
    }

    /** One at a time: the constructor of its statistics fills a map that all stores share. */
    private static synchronized DefaultMessageStore create(MessageStoreConfig config) throws Exception {
        return Line.create(config);
    }

    static void load(DefaultMessageStore store, String root) {
        if (!store.load()) {
            throw new IllegalStateException("the Java store could not load " + root
                + " (are --log-size, --queue-size, --slots and --entries those of its files?)");
        }
    }

    synchronized void wrote(PutMessageResult result) {
        AppendMessageResult append = result.getAppendMessageResult();
        if (append != null) {
            end = Math.max(end, append.getWroteOffset() + append.getWroteBytes());
        }
    }

    /** Returns once everything put is readable and has its queue units and index entries. */
    void awaitDispatch() {
        while (store.getMaxPhyOffset() < end || store.dispatchBehindBytes() > 0) {
            LockSupport.parkNanos(100_000);
        }
    }

    /** Ends the process as a crash would: no shutdown, the abort file stays. */
    static void kill() {
        Runtime.getRuntime().halt(9);
    }

    /** Shuts down cleanly (which takes 1 s in 4.x and 3 s in 5.x), or ends the process with {@code --kill}. */
    @Override
    public void close() {
        if (kill) {
            kill();
        }
        store.shutdown();
    }
}
