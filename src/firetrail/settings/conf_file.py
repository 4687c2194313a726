"""The reader of ``broker.conf``: it fills a settings table and remarks on all other keys."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from firetrail.errors import ConfigError, MisspeltKeyError
from firetrail.format.files.java_properties import Entry
from firetrail.settings.settings_table import HIDDEN, Setting
from firetrail.text import did_you_mean, typo_of

NO_KEY = "is not a key of RocketMQ or Firetrail"
BROKERS = "it belongs to the broker"

UNUSED: Mapping[str, str] = {
    "the store is in the folder that it is opened with": """
        storePathRootDir storePathConsumeQueue storePathIndex storePathDLedgerCommitLog
        storePathEpochFile storePathBrokerIdentity storeCheckpoint abortFile
        """,
    "replication has no setting for this": """
        haTransferCheck*
        allAckInSyncStateSet totalReplicas replicasPerDiskPartition
        syncFromLastFile syncMasterFlushOffsetWhenStartup asyncLearner checkSyncStateSetPeriod
        maxChecksumRange maxSlaveResendLength duplicationEnable
        """,
    "DLedger, controller mode and RocksDB queues are not supported": """
        enableDLegerCommitLog dLeger* preferredLeaderId enableBatchPush *ontroller* storeType
        *RocksDB* *Rocksdb* rocksdb* combine* bottomMostCompressionType* memTableFlushIntervalMs
        brokerElectionPriority enableAcceleratedRecovery
        """,
    "enableLmq alone turns on light queues": "maxLmq* enableLmq[A-Z]* *MultiDispatch",
    "compaction and batch queues are not supported": """
        compaction* enableCompaction maxOffsetMapSize
        mapperFileSizeBatchConsumeQueue searchBcqByCacheEnable disappearTimeAfterStart
        """,
    "it tunes threads, locks or mappings that only the Java store has": """
        useReentrantLockWhenPutMessage useABSLock topicQueueLockNum spinLock* debugLockEnable
        *SwapMap* *SwapedMap* mappedFileSwapEnable writeWithoutMmap *ByFileChannel dispatchCq*
        enableAsyncReput dispatchFromSenderThread *Concurrently batchDispatch*
        wake*WhenPutMessage flushCommitLogTimed *[cC]oldData* dataReadAheadEnable *MadviseEnable
        sample* accessMessageInMemoryHotRatio sharedByteBufferNum maxCheckMessageReuseBufferSize
        maxAsyncPutMessageRequests flushLeastPagesWhenWarmMapedFile putMsgIndexHightWater
        putMessageTimeout correctLogicMinOffset* enableRunningFlagsInFlush
        enableLogConsumeQueue* diskFallRecorded
        """,
    "the store has no setting for this": """
        messageIndexSafe indexFile*Enable forceVerifyPropCRC checkCommitLogOffsetOnRecover
        autoMessageVersionOnTopicLen maxTopicLength readUnCommitted recheckReputOffsetFromCq
        maxRecoveryCommitlogFiles commitLogRecoverMaxNum deleteConsumeQueueFilesInterval
        redeleteHangedFileInterval maxBatchDeleteFilesNum maxConsumeQueueScan
        travelCqFileNumWhenGetMessage logicalDiskSpaceCleanForciblyThreshold
        """,
    "both retry topics of pops are read, and messages are redelivered through the first": """
        enableRetryTopicV2 retrieveMessageFromPopRetryTopicV1
        """,
    "the settings of the Bloom filter decide": "bitMapLengthConsumeQueueExt",
    "users and policies are always in memory, and their file is in the store's folder": """
        userCache* aclCache* stateful* authConfigPath
        """,
    BROKERS: """
        haListenPort haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize
        haFlowControlEnable maxHaTransferByteInSecond
        brokerClusterName brokerName brokerId brokerIP2 brokerPermission brokerConfigPath
        brokerTopicEnable brokerFastFailureEnable brokerNotActiveTimeoutMillis clusterTopicEnable
        namesrv* fetchName* *NameServer* *NameSrv rocketmqHome register* *Register *Heartbeat*
        *ThreadPoolNums *PoolQueueCapacity waitTimeMillsIn* server* client[A-Z]*
        useEpollNativeSelector writeBuffer*WaterMark forwardTimeout channelExpiredTimeout
        subscriptionExpiredTimeout syncBroker* cleanOfflineBrokerInterval asyncSendEnable
        autoCreate* defaultTopicQueueNums validateSystemTopicWhenUpdateTopic
        flushConsumerOffset* consumerOffset* *OffsetUpdateVersionStep useServerSideResetOffset
        *BroadcastOffset* broadcastOffset* enableCleanExpiredOffset flushDelayOffsetInterval
        *cheduleAsyncDeliver* enableScheduleMessageStats pullBatchMaxMessageCount
        transaction* transWrite* checkTransactionMessageEnable rejectTransactionMessage
        longPollingEnable shortPollingTimeMills transferMsgByHeap
        *ConsumerReadSlowly consumerFallbehindThreshold notifyConsumerIdsChangedEnable
        realTimeNotifyConsumerChange litePull* rejectPullConsumerEnable useStaticSubscription
        defaultMessageRequestMode defaultPopShareQueueNum pop* *Pop* revive* *AwaitingAck
        filter* enableCalcFilterBitMap enablePropertyFilter expectConsumerNumUseFilter
        maxErrorRateOfBloomFilter estimateAccumulation enableNetWorkFlowControl lockInStrictMode
        enableSlaveActingMaster enableRemoteEscape skipPreOnline trace* msgTraceTopicName regionId
        metric* commercial* account* enableDetailStat autoDeleteUnusedStats isolateLogEnable
        highSpeedMode startAcceptSendRequestTimeStamp storeReplyMessageEnable messageStorePlugIn
        authenticationEnabled authorizationEnabled initAuthenticationUser
        authenticationWhitelist authorizationWhitelist authenticationStrategy authorizationStrategy
        authenticationProvider authorizationProvider authenticationMetadataProvider
        authorizationMetadataProvider innerClientAuthenticationCredentials
        aclEnable migrateAuthFromV1Enabled
        configBlackList maxDelayTime enableMixedMessageType useTLS
        timer[A-Z]* mappedFileSizeTimerLog appendTopicForTimerDeleteKey *ecallMessageEnable
        allowRecall*
        """,
}
"""Keys of RocketMQ 4.9 and 5.x that have no effect here: patterns of the keys by reason."""


def why_unused(key: str, unused: Mapping[str, str] = UNUSED) -> str | None:
    """Return the reason why a key of RocketMQ has no effect; None if RocketMQ has no such key."""
    for reason, patterns in unused.items():
        if any(fnmatchcase(key, pattern) for pattern in patterns.split()):
            return reason
    return None


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about a key for the author of the file."""

    key: str
    detail: str
    place: str = ""
    typo_of: str = ""
    """The known key that was probably meant; empty if there is none."""

    def __str__(self) -> str:
        return f"{self.place}{self.key} {self.detail}"


@dataclass(slots=True)
class Reading:
    """The result of reading a file: values by the names of their settings, and remarks."""

    values: dict[str, Any] = field(default_factory=dict)
    unknown: list[Remark] = field(default_factory=list)
    ignored: list[Remark] = field(default_factory=list)
    adjusted: list[Remark] = field(default_factory=list)

    @property
    def remarks(self) -> list[Remark]:
        """All remarks."""
        return [*self.ignored, *self.adjusted, *self.unknown]


def refuse_typos(unknown: Iterable[Remark]) -> None:
    """Raise MisspeltKeyError for an unknown key that is almost a known one."""
    for remark in unknown:
        if remark.typo_of:
            detail = f"{remark.detail} Correct the key, or remove the line"
            raise MisspeltKeyError(remark.key, HIDDEN, detail, remark.place)


def read_settings(
    settings: Mapping[str, Setting],
    entries: Mapping[str, Entry],
    unused: Mapping[str, str] = UNUSED,
    no_key: str = NO_KEY,
) -> Reading:
    """Return the values in ``entries`` and remarks; raise ConfigError for an invalid value."""
    reading = Reading()
    for setting in settings.values():
        for key in setting.names_in_file:
            if key in entries:
                _read_value(reading, setting, key, entries[key])
    known = {name for setting in settings.values() for name in setting.names_in_file}
    for key, entry in entries.items():
        if key in known:
            continue
        if reason := why_unused(key, unused):
            reading.ignored.append(Remark(key, f"has no effect: {reason}", entry.place))
        else:
            detail = f"{no_key}{did_you_mean(key, known)}"
            reading.unknown.append(Remark(key, detail, entry.place, typo_of(key, known)))
    return reading


def _read_value(reading: Reading, setting: Setting, key: str, entry: Entry) -> None:
    text = entry.text.strip()
    try:
        value = setting.parse(key, text, reading.values.get(setting.name, setting.default))
        kept = setting.kind.check(setting.kind.tolerate(value))
    except ValueError as error:
        hint = "; a comment needs a line of its own" if "#" in text else ""
        raise ConfigError(key, setting.shown(text), f"{error}{hint}", entry.place) from None
    if kept != value:
        reading.adjusted.append(
            Remark(key, f"= {text} is taken as {setting.kind.show(kept)}", entry.place)
        )
    reading.values[setting.name] = kept
