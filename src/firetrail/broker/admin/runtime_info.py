"""Runtime figures of the whole broker, which ``mqadmin brokerStatus`` and exporters read.

The keys and the formats of the values are those of RocketMQ 5.3, because tools parse them without
checking.
"""

from collections import deque
from collections.abc import Callable
from datetime import date, datetime

from firetrail.broker.services.schedule import ScheduleService
from firetrail.broker.timer.timer_service import TimerService
from firetrail.format.names import SCHEDULE_TOPIC
from firetrail.remoting.connections.connection import Connection
from firetrail.remoting.connections.handlers import Handler
from firetrail.remoting.messages.bodies import KVTable
from firetrail.remoting.servers.client_limits import ServerLimits
from firetrail.remoting.wire.codes import RequestCode, Version
from firetrail.remoting.wire.command import RemotingCommand
from firetrail.store.broker_store import BrokerStore
from firetrail.store.stats import Snapshot
from firetrail.text import human_size

SAMPLES = 61
"""Number of samples kept to compute rates: ten minutes, one every ten seconds."""
SAMPLE_S = 10
MINUTE = 6
"""Number of samples per minute."""
LATENCIES = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
"""RocketMQ's names for the classes of ``PUT_LATENCY_BOUNDS_MS``."""
NO_POOL = str(2**31 - 1)
"""The number of free write buffers that RocketMQ reports if it does not use write buffers."""
ZEROS = (
    *("sendThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills"),
    *("pullThreadPoolQueueSize", "pullThreadPoolQueueHeadWaitTimeMills"),
    *("queryThreadPoolQueueSize", "queryThreadPoolQueueHeadWaitTimeMills"),
    *("pageCacheLockTimeMills", "getMessageEntireTimeMax"),
    *("dispatchMaxBuffer", "startAcceptSendRequestTimeStamp"),
)
"""Figures of features that this broker lacks, such as request queues of thread pools."""


class RuntimeInfo:
    """Handles GET_BROKER_RUNTIME_INFO."""

    def __init__(
        self,
        store: BrokerStore,
        limits: ServerLimits,
        timer: TimerService,
        schedule: ScheduleService,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._timer = timer
        self._timer_samples = deque([(0, 0)], maxlen=2)
        self._schedule = schedule
        self._limits = limits
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._samples = deque([store.embedded.statistics()], maxlen=SAMPLES)
        self._day = self._today()
        self._mornings = deque([self._samples[0]] * 2, maxlen=2)
        self.handlers: dict[int, Handler] = {RequestCode.GET_BROKER_RUNTIME_INFO: self._answer}

    def sample(self) -> None:
        """Take a sample of the counters, to compute rates. Called every ten seconds."""
        self._samples.append(self._store.embedded.statistics())
        self._timer_samples.append((self._timer.enqueued, self._timer.delivered))
        if self._day != self._today():
            self._day = self._today()
            self._mornings.append(self._samples[-1])

    def _today(self) -> date:
        return datetime.fromtimestamp(self._now_ms() / 1000).date()

    def _answer(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        now = self._store.embedded.statistics()
        table = {
            "brokerVersionDesc": Version(Version.V4_9_8).name,
            "brokerVersion": str(int(Version.V4_9_8)),
            "bootTimestamp": str(self._started_ms),
            "runtime": _duration((self._now_ms() - self._started_ms) // 1000),
            "brokerActive": "true",
            **dict.fromkeys(ZEROS, "0"),
            **self._timer_figures(),
            **self._delay_figures(),
            **self._log_figures(),
            **self._damage_figures(),
            **self._put_figures(now),
            **self._day_figures(now),
            **self._rates(now),
            **self._capacities(),
        }
        return request.answer(body=KVTable(dict(sorted(table.items()))).encode())

    def _timer_figures(self) -> dict[str, str]:
        """Return the figures of messages that wait for a delivery time."""
        timer = self._timer
        before, now = self._timer_samples[0], self._timer_samples[-1]
        return {
            "timerReadBehind": str(timer.behind_ms // 1000),
            "timerOffsetBehind": str(timer.offset_behind),
            "timerCongestNum": str(timer.waiting),
            "timerEnqueueTps": f"{(now[0] - before[0]) / SAMPLE_S:.1f}",
            "timerDequeueTps": f"{(now[1] - before[1]) / SAMPLE_S:.1f}",
        }

    def _delay_figures(self) -> dict[str, str]:
        """Return the next offset and the end of the queue of each delay level in use."""
        return {
            f"scheduleMessageOffset_{level}": (
                f"{offset},{self._store.queues.max_offset(SCHEDULE_TOPIC, level - 1)}"
            )
            for level, offset in self._schedule.content().offset_table.items()
        }

    def _log_figures(self) -> dict[str, str]:
        store = self._store
        first, end = store.embedded.log_range
        oldest = store.log.oldest_time()
        ratio = f"{store.space.used_ratio():.4f}"
        total, free = store.space.total_and_free()
        return {
            "commitLogMinOffset": str(first),
            "commitLogMaxOffset": str(end),
            "dispatchBehindBytes": str(store.embedded.dispatch_behind),
            "remainHowManyDataToFlush": f"{max(end - store.log.flushed_offset, 0)} B",
            "earliestMessageTimeStamp": str(-1 if oldest is None else oldest),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {human_size(total)}, Free : {human_size(free)}.",
            **{
                f"commitLogDiskRatio_{folder}": f"{used:.4f}"
                for folder, used in store.space.log_disks().items()
            },
        }

    def _damage_figures(self) -> dict[str, str]:
        """Return the amount of damage, and the progress of the scrub of the log."""
        damage, scrub = self._store.damage, self._store.log_scrub
        return {
            "damagedRecords": str(len(damage)),
            "damagedRecordsFound": str(damage.found),
            "damagedRecordsRepaired": str(damage.repaired),
            "scrubOffset": str(scrub.position),
            "scrubPasses": str(scrub.passes),
        }

    def _put_figures(self, now: Snapshot) -> dict[str, str]:
        """Return the puts since the start, and how long those of the last minute took."""
        earlier = self._samples[max(len(self._samples) - MINUTE, 0)]
        times = now.put_times_since(earlier)
        classes = zip(LATENCIES, times, strict=True)
        return {
            "putMessageTimesTotal": str(now.put_calls),
            "putMessageSizeTotal": str(now.put_bytes),
            "putMessageAverageSize": str(now.put_bytes / max(now.put_messages, 1)),
            "putMessageEntireTimeMax": str(now.put_latency_max_ms),
            "putMessageDistributeTime": " ".join(f"[{name}]:{count}" for name, count in classes),
        }

    def _day_figures(self, now: Snapshot) -> dict[str, str]:
        yesterday, today = self._mornings
        return {
            "msgPutTotalYesterdayMorning": str(yesterday.put_messages),
            "msgPutTotalTodayMorning": str(today.put_messages),
            "msgPutTotalTodayNow": str(now.put_messages),
            "msgGetTotalYesterdayMorning": str(yesterday.get_messages),
            "msgGetTotalTodayMorning": str(today.get_messages),
            "msgGetTotalTodayNow": str(now.get_messages),
        }

    def _rates(self, now: Snapshot) -> dict[str, str]:
        """Return rates per second in the last ten seconds, the last minute and ten minutes.

        "Found", "miss" and "total" count pulls. "Transfered" counts messages; tools use both
        spellings.
        """
        samples = list(self._samples)
        rates = [now.since(samples[max(len(samples) - back, 0)]) for back in (1, MINUTE, SAMPLES)]
        sent = [rate.get_messages for rate in rates]
        found = {
            "putTps": [rate.put_messages for rate in rates],
            "getFoundTps": [rate.get_found for rate in rates],
            "getMissTps": [rate.get_calls - rate.get_found for rate in rates],
            "getTotalTps": [rate.get_calls for rate in rates],
            "getTransferedTps": sent,
            "getTransferredTps": sent,
        }
        return {name: " ".join(f"{each:.1f}" for each in values) for name, values in found.items()}

    def _capacities(self) -> dict[str, str]:
        """Return the limit for waiting requests, and the number of free write buffers."""
        running = self._limits.running
        codes = {
            "send": RequestCode.SEND_MESSAGE_V2,
            "pull": RequestCode.PULL_MESSAGE,
            "query": RequestCode.QUERY_MESSAGE,
        }
        found = {
            f"{name}ThreadPoolQueueCapacity": str(running.get(code, self._limits.waiting_requests))
            for name, code in codes.items()
        }
        free = self._store.log.free_buffers
        return found | {"remainTransientStoreBufferNumbs": NO_POOL if free is None else str(free)}


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
