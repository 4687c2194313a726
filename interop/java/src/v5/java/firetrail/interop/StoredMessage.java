package firetrail.interop;

import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/** The 5.x broker-side message under the one name that the shared source uses. */
final class StoredMessage extends MessageExtBrokerInner {
    private static final long serialVersionUID = 1L;
}
