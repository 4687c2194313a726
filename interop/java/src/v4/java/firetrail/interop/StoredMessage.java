package firetrail.interop;

import org.apache.rocketmq.store.MessageExtBrokerInner;

/** The 4.x broker-side message under the one name that the shared source uses. */
final class StoredMessage extends MessageExtBrokerInner {
    private static final long serialVersionUID = 1L;
}
