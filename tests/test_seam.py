"""Files, file locks, clocks and threads are reached through ``system/`` alone.

Tests replace a :class:`System` to make a disk full, a sync fail, a clock run backwards or a thread
run late. That works only for code that asks the system. The check reads the syntax tree, so
comments do not count, and names are resolved through the imports of the module.

Calls that only ask whether a path exists or what a folder lists (``exists``, ``is_dir``, ``stat``,
``iterdir``, ``glob``) are not covered. They change nothing, so no crash or full disk that a test
simulates depends on them, and most are in commands, in repairs and in jobs of the pipeline, where
paths come from the user.

Threads are forbidden everywhere. What they use to wait for each other (locks, events, conditions)
is forbidden in the layers whose threads a test can step: a thread that waits for such a lock of
:mod:`threading` would stop all others.
"""

import ast
from collections.abc import Iterator, Set
from functools import cache

import pytest
from tests.test_layers import PACKAGE, layer_of

SEAM = "system"

# Functions of the standard library that open, change, lock or remove files, or tell the time.
FORBIDDEN = {
    *("open", "io.open", "io.FileIO"),
    *(f"os.{name}" for name in ("open", "fdopen", "fsync", "fdatasync", "sync", "statvfs")),
    *(f"os.{name}" for name in ("rename", "replace", "unlink", "remove", "link", "symlink")),
    *(f"os.{name}" for name in ("mkdir", "makedirs", "rmdir", "removedirs", "listdir", "scandir")),
    *(f"os.{name}" for name in ("pread", "pwrite", "pwritev", "ftruncate", "truncate", "utime")),
    *(f"os.{name}" for name in ("posix_fallocate", "copy_file_range", "lockf", "chmod")),
    *(f"shutil.{name}" for name in ("rmtree", "move", "copy", "copy2", "copyfile", "copytree")),
    *(f"shutil.{name}" for name in ("copyfileobj", "disk_usage")),
    *(f"time.{name}" for name in ("time", "time_ns", "monotonic", "monotonic_ns", "sleep")),
    *(f"time.{name}" for name in ("perf_counter", "perf_counter_ns", "localtime", "gmtime")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
    *("fcntl.flock", "fcntl.lockf", "fcntl.fcntl"),
    *(f"tempfile.{name}" for name in ("mkdtemp", "mkstemp", "TemporaryDirectory", "TemporaryFile")),
    "tempfile.NamedTemporaryFile",
    *(f"firetrail.system.{name}" for name in ("System", "Files", "Clock", "Threads")),
    *("threading.Thread", "threading.Timer", "concurrent.futures.ThreadPoolExecutor"),
}

# What threads use to wait for each other, and the layers that get it from the system.
WAITS = {f"threading.{name}" for name in ("Lock", "RLock", "Event", "Condition", "Semaphore")}
WAITS |= {"threading.Barrier", "queue.Queue", "queue.SimpleQueue"}
STEPPED_LAYERS = {"storage", "store", "access", "replication"}

# Methods of `pathlib.Path` that do the same. A `Files` has methods of these names, too: it is
# recognized by the name of the variable that holds it.
PATH_METHODS = {"write_text", "write_bytes", "read_text", "read_bytes", "mkdir", "rmdir"}
PATH_METHODS |= {"unlink", "touch", "rename", "chmod", "symlink_to", "hardlink_to"}
FILES_NAMES = {"files", "_files"}
OPEN_MODES = {mode + binary for mode in ("r", "w", "a", "x", "r+", "w+") for binary in ("", "b")}

# Modules that may do without the seam, and why.
ALLOWED: dict[tuple[str, str], str] = {
    ("broker/background.py", "threading.Thread"): "the event loop of Broker.running()",
    ("broker/broker.py", "tempfile.TemporaryDirectory"): "Broker.running() without a folder",
    ("cli/compatibility_page.py", "read_text"): "writes a page of the documentation",
    ("cli/compatibility_page.py", "write_text"): "writes a page of the documentation",
    ("cli/config_page.py", "write_text"): "writes a page of the documentation",
    ("cli/main.py", "os.open"): "/dev/null in the place of a closed standard output",
    ("cli/clusters/send.py", "open"): "reads messages from a file or from standard input",
    ("client/loop_thread.py", "threading.Thread"): "runs an event loop for other threads",
    ("cli/clusters/send.py", "threading.Thread"): "reads standard input, which blocks",
    ("cli/servers/up.py", "tempfile.TemporaryDirectory"): "a broker without a folder",
    ("pipeline/java.py", "chmod"): "a script for Spark, gone with the process",
    ("pipeline/java.py", "mkdir"): "a script for Spark, gone with the process",
    ("pipeline/java.py", "shutil.rmtree"): "a script for Spark, gone with the process",
    ("pipeline/java.py", "tempfile.mkdtemp"): "a script for Spark, gone with the process",
    ("pipeline/java.py", "write_text"): "a script for Spark, gone with the process",
    ("pipeline/lakes/local_folder.py", "mkdir"): "folders of a lake get the user's default mode",
    ("pipeline/lakes/local_folder.py", "open"): "the lock file, kept open as long as the lock",
    ("pipeline/lakes/local_folder.py", "rename"): "synced afterwards, all folders at once",
    (
        "pipeline/jobs/archive/table_formats.py",
        "mkdir",
    ): "folders of a lake get the user's default mode",
    ("pipeline/jobs/audit/audit_page.py", "write_text"): "the report that the user asked for",
    ("pipeline/jobs/rebuild/rebuild_job.py", "mkdir"): "synced afterwards, all folders at once",
    ("pipeline/jobs/rebuild/rebuild_job.py", "rename"): "synced afterwards, all folders at once",
    ("pipeline/jobs/rebuild/pieces.py", "open"): "temporary files that tasks leave for others",
    ("pipeline/jobs/report/__init__.py", "write_text"): "the report that the user asked for",
    ("pipeline/jobs/report/blocks.py", "read_text"): "a resource of the package",
    ("pipeline/jobs/restore.py", "open"): "a new segment, mapped for writing by a Spark task",
    ("pipeline/jobs/restore.py", "rename"): "synced afterwards, once for all segments",
    ("pipeline/sink/staged_rows.py", "mkdir"): "temporary files, written by pyarrow",
    ("pipeline/sink/store_writers.py", "rmdir"): "temporary files, written by pyarrow",
    ("pipeline/source/places.py", "firetrail.system.System"): "a system whose files are remote",
    ("pipeline/source/places.py", "read_text"): "/proc of the process that started Spark",
    ("pipeline/tasks.py", "threading.Thread"): "shows the progress of a Spark job",
    ("pipeline/wire/loop.py", "threading.Thread"): "the event loop of a Spark task",
    ("pipeline/workers.py", "read_bytes"): "/proc of the executor",
    ("pipeline/workers.py", "read_text"): "/proc of the executor",
    ("replication/group/etcd_gateway.py", "threading.Lock"): "held for a few statements",
    ("store/root/folder.py", "threading.Lock"): "the locks of all stores of this process",
    (
        "tls/self_signed.py",
        "tempfile.NamedTemporaryFile",
    ): "an encrypted key for OpenSSL, gone at once",
    ("store/repair/repair.py", "rmdir"): "an empty folder of a repair; a crash may bring it back",
}


# The layers that get their system as an argument; only what users call first knows that of the
# process. The time of the event loop is allowed for what is compared with timers of asyncio.
INJECTED_LAYERS = {"broker", "namesrv", "proxy", "remoting", "access", "replication", "store"}
INJECTED_LAYERS |= {"tls", "auth", "storage", "settings"}
GLOBAL = "firetrail.system.SYSTEM"
ENTRY_POINTS = {
    "broker/broker.py": "Broker",
    "namesrv/server.py": "NameServer",
    "proxy/proxy.py": "Proxy",
    "remoting/connections/access.py": "secrets of clients and commands, without a system",
    "store/bulk.py": "BulkCommit, which Spark's writers use",
    "store/settings/store_config.py": "StoreConfig.from_properties, which reads a file",
    "store/inspect/view.py": "StoreView.open",
    "store/store.py": "Store.open",
    "tls/server_tls.py": "ServerTls, which commands create before the server",
}
# Modules that use it in other ways, and why.
GLOBAL_USERS = {
    "remoting/connections/unexpected_errors.py": "limits the log, for servers and clients",
    "tls/certificates.py": "files of servers and clients, which OpenSSL reads, too",
    "tls/certificate_issuer.py": "certificates that commands issue, and servers at their start",
}


def imported(tree: ast.Module) -> dict[str, str]:
    """Return the names that the imports of a module bind, and the objects that they name."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {item.asname or item.name: item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    return names


def dotted(node: ast.expr) -> str:
    """The name that an expression spells; empty if it is more than a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def ways_past_the_seam(source: str, forbidden: Set[str] = FORBIDDEN) -> Iterator[tuple[int, str]]:
    """Line and name of every access to files, locks, clocks and threads."""
    tree = ast.parse(source)
    names, nodes = imported(tree), list(ast.walk(tree))
    annotations = {
        id(part)
        for node in nodes
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(annotation, ast.expr)
        for part in ast.walk(annotation)
    }
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute) or id(node) in annotations:
            continue
        if not isinstance(node.ctx, ast.Load):
            continue
        owner, _, rest = dotted(node).partition(".")
        full = f"{names.get(owner, owner)}.{rest}".rstrip(".")
        call = called.get(id(node))
        if full in forbidden and (call is not None or not full.startswith("firetrail.")):
            yield node.lineno, full
        elif call is not None and isinstance(node, ast.Attribute) and is_of_a_path(node, call):
            yield node.lineno, node.attr


def is_of_a_path(method: ast.Attribute, call: ast.Call) -> bool:
    """Whether a call is that of a `Path`, as far as its name and its arguments tell."""
    owner = method.value
    if getattr(owner, "attr", getattr(owner, "id", "")) in FILES_NAMES:
        return False
    if method.attr == "open":
        modes = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "mode")]
        return any(isinstance(mode, ast.Constant) and mode.value in OPEN_MODES for mode in modes)
    if method.attr == "replace":  # that of a string takes two arguments
        return len(call.args) == 1 and not call.keywords
    return method.attr in PATH_METHODS


@cache
def found() -> dict[tuple[str, str], list[int]]:
    """All of them: lines by file and name."""
    lines: dict[tuple[str, str], list[int]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        layer = layer_of(path)
        if layer != SEAM:
            forbidden = FORBIDDEN | WAITS if layer in STEPPED_LAYERS else FORBIDDEN
            for line, name in ways_past_the_seam(path.read_text(encoding="utf-8"), forbidden):
                lines.setdefault((path.relative_to(PACKAGE).as_posix(), name), []).append(line)
    return lines


def test_files_clocks_and_threads_are_reached_through_the_system() -> None:
    strangers = {place: lines for place, lines in found().items() if place not in ALLOWED}
    assert not strangers, "use a System (firetrail.system), or add a reason to ALLOWED"


def test_every_exception_is_still_needed() -> None:
    assert not set(ALLOWED) - set(found())


def uses_of_the_global(source: str) -> Iterator[bool]:
    """For every use of the system of the process, whether it is the default of an argument.

    ``argument or SYSTEM`` and ``SYSTEM if argument is None else …`` are such defaults, too.
    """
    tree = ast.parse(source)
    names = imported(tree)
    defaults: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.arguments(defaults=positional, kw_defaults=keyword):
                defaults |= {id(each) for each in (*positional, *keyword)}
            case ast.BoolOp(op=ast.Or(), values=[ast.Name(), default]):
                defaults.add(id(default))
            case ast.IfExp(test=ast.Compare(ops=[ast.Is()]), body=default):
                defaults.add(id(default))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            owner, _, rest = dotted(node).partition(".")
            if f"{names.get(owner, owner)}.{rest}".rstrip(".") == GLOBAL:
                yield id(node) in defaults


def test_servers_and_stores_use_the_system_that_they_are_given() -> None:
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
        if layer_of(path) in INJECTED_LAYERS
    }
    found = {
        path.relative_to(PACKAGE).as_posix(): all(uses)
        for path, text in texts.items()
        if "SYSTEM" in text and (uses := list(uses_of_the_global(text)))
    }
    expected = {**dict.fromkeys(ENTRY_POINTS, True), **dict.fromkeys(GLOBAL_USERS, False)}
    assert found == expected, "take the System, or its clock, as an argument"


@pytest.mark.parametrize(
    ("source", "is_default"),
    [
        ("def f(system: System = SYSTEM): ...", True),
        ("def f(*, system: System = SYSTEM): ...", True),
        ("files = (system or SYSTEM).files", True),
        ("system = SYSTEM if system is None else system", True),
        ("def f(clock: Clock = SYSTEM.clock): ...", False),
        ("now = SYSTEM.clock.monotonic()", False),
        ("open_it(SYSTEM)", False),
    ],
)
def test_a_default_is_told_from_another_use(source: str, is_default: bool) -> None:
    module = f"from firetrail.system import SYSTEM, System\n{source}"
    assert list(uses_of_the_global(module)) == [is_default]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("open('x')", "open"),
        ("import os\nos.fsync(1)", "os.fsync"),
        ("import os as system\nsystem.rename(a, b)", "os.rename"),
        ("from os import fsync as sync\nsync(1)", "os.fsync"),
        ("from time import monotonic\nclock = monotonic", "time.monotonic"),
        ("import time\ndef f(clock=time.time): ...", "time.time"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("def f():\n    from shutil import rmtree\n    rmtree(x)", "shutil.rmtree"),
        ("from firetrail.system import System\nsystem = System()", "firetrail.system.System"),
        ("import threading\nthreading.Thread(target=f).start()", "threading.Thread"),
        ("from threading import Timer\nTimer(1, f).start()", "threading.Timer"),
        ("path.write_text('x')", "write_text"),
        ("(root / 'x').open('wb')", "open"),
        ("path.open(mode='r')", "open"),
        ("path.replace(other)", "replace"),
        ("Path('x').unlink(missing_ok=True)", "unlink"),
    ],
)
def test_a_way_past_the_seam_is_found(source: str, name: str) -> None:
    assert [found for _, found in ways_past_the_seam(source)] == [name]


@pytest.mark.parametrize(
    "source",
    [
        "'x'.replace('a', 'b')",
        "Store.open(path)",
        "self._files.rename(a, b)",
        "system.files.open(path, writable=True)",
        "from firetrail.system import System\ndef f(system: System | None) -> System: ...",
        "from firetrail.system import Files\nclass Remote(Files): ...",
        "import os\nos.environ['open']",
        "time.sleep_ms(1)",
        "# os.fsync(1)",
        "open: int = 0",
    ],
)
def test_other_code_is_not_mistaken_for_one(source: str) -> None:
    assert not list(ways_past_the_seam(source))
