"""The groups and units of the store's settings."""

from firetrail.format.names import OFFSET_MAX
from firetrail.settings.settings_table import Flag, Group, Whole

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

FLAG = Flag()
BYTES = Whole(1, unit="bytes")
BYTES_OR_0 = Whole(0, unit="bytes")
LOG_BYTES = Whole(0, OFFSET_MAX, unit="bytes")
MESSAGES = Whole(1, unit="messages")
MS = Whole(1, unit="ms")
MS_OR_0 = Whole(0, unit="ms")
PAGES = Whole(0, unit="pages")

FILES = Group(
    "Files",
    "Sizes apply to new files. A store keeps the sizes that it was created with: Firetrail derives"
    " them from the files, and the Java store refuses to start if its settings differ.",
)
PUT = Group("Put", "These settings control which messages are accepted, and how they are stored.")
FLUSH = Group(
    "Flush",
    "With `SYNC_FLUSH`, a put waits for the disk, and the intervals for the log do not apply.",
)
POOL = Group(
    "Write-buffer pool",
    "Messages are collected in memory, committed to the file and then synced. They are not readable"
    " before the commit, and a killed process loses uncommitted messages. The pool requires"
    " `ASYNC_FLUSH` and a master.",
)
REPLICATION = Group(
    "Replication",
    "A `SYNC_MASTER` acknowledges a message when replicas have confirmed it. Consumers do not see"
    " the message before that.",
)
RECOVERY = Group("Recovery", "This setting controls the start after an unclean stop.")
RETENTION = Group(
    "Retention",
    "Commit-log files are deleted oldest first, but never the active one. Consume queues and index"
    " files follow. The ratios refer to the used space of the file system.",
)
DAMAGE = Group(
    "Damage",
    "These settings control how a broker finds damaged records, and what consumers see of them.",
)
READ = Group("Read", "These limits apply to one call, but the first message is always returned.")
