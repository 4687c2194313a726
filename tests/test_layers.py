"""Imports go down only: each layer knows those it is allowed to know, and the core needs nothing.

Every import counts, also those inside functions and those for the type checker alone: a name that
only an annotation needs is still knowledge of a higher layer.
"""

import ast
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "firetrail"

# Modules that every layer may import.
FOUNDATION = {"errors", "kernels"}
# The layers that each layer may import besides itself and the foundation.
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "kernels": set(),
    "format": set(),
    "text": set(),
    "libc": set(),
    "pace": {"text"},
    "system": {"libc"},
    "settings": {"format", "system", "text"},
    "storage": {"format", "system", "settings"},
    "store": {"format", "text", "system", "settings", "storage"},
    "auth": {"format", "text", "system", "settings"},
    "tls": {"format", "text", "system", "settings"},
    "remoting": {"format", "text", "system", "pace", "settings", "auth", "tls"},
    "access": {"format", "text", "system", "pace", "settings", "auth", "remoting"},
    "client": {"format", "text", "system", "pace", "auth", "tls", "remoting", "access"},
    "namesrv": {
        *("format", "text", "system", "pace", "settings"),
        *("auth", "tls", "remoting", "access"),
    },
    "replication": {
        *("format", "text", "system", "settings", "storage", "store", "pace"),
        *("auth", "tls", "remoting"),
    },
    "broker": {
        *("format", "text", "system", "settings", "storage", "store", "pace"),
        *("auth", "tls", "remoting", "access", "client", "namesrv", "replication"),
    },
    "proxy": {
        *("format", "text", "system", "settings", "storage", "store", "pace"),
        *("auth", "tls", "remoting", "access", "client", "namesrv", "broker"),
    },
    "testing": {"auth", "tls", "broker", "client", "proxy"},
    "pipeline": {
        *("format", "text", "system", "settings", "storage", "store"),
        *("auth", "tls", "remoting", "client"),
    },
}
LAYERS["cli"] = set(LAYERS) | {"__version__"}
LAYERS["__main__"] = set()
# The package itself offers the embedded store: `from firetrail import Store`.
LAYERS[""] = {"format", "system", "store"}

# The rooms of the store, of which many do not know each other, with those that each may import.
STORE_ROOMS: dict[str, set[str]] = {
    "repair": {
        *("bulk", "store", "inspect", "evidence", "root", "dispatch", "index", "log", "queues"),
        *("settings", "problems"),
    },
    "bulk": {
        *("bulk_journal", "store", "inspect", "root", "admission", "log", "queues", "settings"),
    },
    "bulk_journal": set(),
    "broker_store": {
        *("checked_store", "log_copy", "topic_removal", "store", "engine", "integrity"),
        "settings",
    },
    "checked_store": {"engine", "dispatch", "reads", "integrity", "log", "queues", "results"},
    "log_copy": {"engine", "admission", "log", "settings"},
    "topic_removal": {"engine"},
    "store": {
        *("store_status", "engine", "dispatch", "reads", "admission", "settings", "results"),
    },
    "store_status": {"engine", "recovery", "settings", "stats"},
    "engine": {
        *("put", "recovery", "retention", "evidence", "root", "dispatch", "reads", "admission"),
        *("index", "log", "queues", "settings", "stats"),
    },
    "put": {
        *("root", "dispatch", "admission", "log", "queues", "settings", "stats", "results"),
        "outcomes",
    },
    "inspect": {
        *("evidence", "root", "dispatch", "reads", "index", "log", "queues", "settings"),
        "problems",
    },
    "recovery": {"evidence", "root", "dispatch", "index", "log", "queues", "problems"},
    "retention": {"evidence", "root", "dispatch", "admission"},
    "evidence": {"root", "dispatch", "index", "log", "queues"},
    "root": {"index", "log", "queues", "settings"},
    "dispatch": {"index", "log", "queues"},
    "reads": {"integrity", "index", "log", "queues", "settings", "results", "kernels"},
    "admission": {"log", "queues", "settings"},
    "integrity": {"log", "queues", "settings", "problems"},
    "index": {"log", "results", "problems"},
    "log": {"queues", "settings", "problems", "kernels"},
    "queues": {"problems"},
    "settings": set(),
    "stats": {"kernels"},
    "results": {"kernels", "outcomes"},
    "problems": set(),
    "kernels": {"outcomes"},
    "outcomes": set(),
}

# The rooms of the other layers, which are folders and the modules beside them, from the top down:
# each one may import those below it. A module that is listed by itself has another place than the
# rest of its folder: the connection of HTTP/2 uses kernels, which use numbers and limits of HTTP/2;
# and properties are split by a kernel, while other kernels use their names.
ROOMS: dict[str, tuple[str, ...]] = {
    "remoting": ("servers", "connections", "messages", "wire", "kernels"),
    "pipeline": (
        *(
            "jobs",
            "tables.databases",
            "tables.runs",
            "tables.row_task",
            "tables.dry_rows",
            "tables.table_options",
        ),
        *("tables.keyed", "tables.files", "tables.messages"),
        *("decoding.decoder_spec", "decoding.formats", "decoding.events", "decoding.body_decoder"),
        *("decoding.values", "decoding.schema"),
        *("tasks", "datasource", "spark_readers", "batch_plan", "backend"),
        *("wire", "sink", "lakes", "source", "kernels"),
        *("spark_session", "java", "daemon", "workers", "failures", "options", "logger"),
    ),
    "access": (
        *("file_access", "access_settings", "guard", "user_requests", "acl_deletion"),
        *("audit", "client_owners", "rules", "implied_permissions", "user_limits"),
        *("copied_users", "user_store", "plain", "user_bodies"),
    ),
    "settings": (
        *("audit_settings", "log_settings", "server_limits", "file_changes", "conf_file"),
        *("config_file", "settings_table", "descriptors"),
    ),
    "format": (
        *("batch", "record", "light", "recall_handle", "message_types", "compression"),
        *("system_topics", "kernels", "columns", "properties"),
        *("kernels.properties", "kernels._shadow", "files", "names", "values", "layout"),
    ),
    "client": (
        *("sync", "loop_thread", "producers", "consumers", "administration"),
        *("messages", "cluster"),
    ),
    "replication": ("replica", "learner", "group", "ha", "log"),
    "proxy": (
        *("proxy", "calls", "upstream", "conversion", "transport"),
        *("http2.http2_connection", "kernels", "http2", "schema", "proxy_config", "grpc_extra"),
    ),
    "cli": (
        *(
            "main",
            "config_page",
            "compatibility_page",
            "spark_jobs",
            "clusters",
            "users",
            "replication",
            "servers",
            "stores",
        ),
        *("running_cluster", "record_output", "common", "output", "subcommand"),
    ),
    "broker": (
        *(
            "background",
            "broker",
            "broker_access",
            "roles",
            "term",
            "replica",
            "broker_parts",
            "admin",
            "takeover",
            "pop",
        ),
        *(
            "processors",
            "timer",
            "transactions",
            "broker_state",
            "services",
            "filter",
            "stored_messages",
            "state",
        ),
        *("ports", "broker_conf_file", "broker_config"),
        *("limit_settings", "broker_config_groups", "unsupported"),
    ),
}

# `format` is bytes and nothing else.
IO_AND_CLOCK = {"asyncio", "fcntl", "io", "mmap", "os", "pathlib", "select", "shutil"}
IO_AND_CLOCK |= {"socket", "subprocess", "tempfile", "threading", "time"}

# Layers without a dependency outside the standard library. These do not count as dependencies:
# `cython` has a replacement where it is missing, `_typeshed` exists for type checkers only, and
# `uvloop` is used only where it is installed.
CORE = {
    "",
    "errors",
    "kernels",
    "format",
    "text",
    "libc",
    "system",
    "settings",
    "storage",
    "store",
    "auth",
    "cli",
}
STANDARD = sys.stdlib_module_names | {"firetrail", "cython", "_typeshed", "uvloop"}


def modules(*layers: str) -> list[Path]:
    return [
        path for path in sorted(PACKAGE.rglob("*.py")) if not layers or layer_of(path) in layers
    ]


def layer_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if part == "__init__" else part


@cache
def imported_names(path: Path) -> list[tuple[int, str]]:
    """Line and full name of everything that the module imports."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    package = ("firetrail", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, f"{origin}.{name.name}") for name in node.names)


def violations(paths: list[Path], allowed: Callable[[Path, list[str]], bool]) -> list[str]:
    """The imports, as ``file:line imports name``, whose dotted name ``allowed`` does not accept."""
    return [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in paths
        for line, name in imported_names(path)
        if not allowed(path, name.removeprefix("cython.cimports.").split("."))
    ]


def goes_down(path: Path, name: list[str]) -> bool:
    layer = layer_of(path)
    if name[0] != "firetrail":
        return True
    return len(name) > 1 and name[1] in {layer} | FOUNDATION | LAYERS[layer]


def test_every_layer_is_known() -> None:
    unknown = {layer_of(path) for path in modules()} - set(LAYERS)
    assert not unknown, "give it a place in LAYERS of this test"


def test_the_rules_have_no_circle() -> None:
    for layer, below in LAYERS.items():
        for other in below - {"__version__"}:
            assert layer not in LAYERS[other], f"{layer} and {other} may import each other"


def test_imports_go_down() -> None:
    assert not violations(modules(), goes_down)


def imported_modules(path: Path) -> set[Path]:
    found = set()
    for _, name in imported_names(path):
        parts = name.removeprefix("cython.cimports.").split(".")
        if parts[0] == "firetrail":
            places = (PACKAGE.joinpath(*parts[1:end]) for end in (len(parts), len(parts) - 1))
            files = (place.with_suffix(".py") for place in places)
            found |= {file for file in files if file.is_file() and file != path}
    return found


def test_modules_do_not_import_each_other() -> None:
    """Packages are left out: a front door imports what it offers."""
    graph = {path: imported_modules(path) for path in modules() if path.name != "__init__.py"}
    assert PACKAGE / "libc.py" in graph[PACKAGE / "system" / "files.py"]
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_core_needs_the_standard_library_only() -> None:
    assert not violations(modules(*CORE), lambda _, name: name[0] in STANDARD)


def test_format_knows_no_io_and_no_clock() -> None:
    assert not violations(modules("format"), lambda _, name: name[0] not in IO_AND_CLOCK)


def test_an_import_that_goes_up_is_found() -> None:
    segment = PACKAGE / "storage" / "segment.py"
    assert not goes_down(segment, ["firetrail", "store", "settings", "store_config"])
    assert not goes_down(segment, ["firetrail"])
    assert goes_down(segment, ["firetrail", "format", "names"])


def test_bodies_are_decoded_without_spark_and_without_places() -> None:
    """A decoder is given bodies: it knows neither their origin nor the jobs."""
    known = {"decoding", "options"}

    def is_below(_: Path, name: list[str]) -> bool:
        return name[0] != "pyspark" and (name[:2] != ["firetrail", "pipeline"] or name[2] in known)

    decoders = [path for path in modules("pipeline") if "decoding" in path.parts]
    assert decoders
    assert not violations(decoders, is_below)


def rooms(layer: str) -> Collection[str]:
    return STORE_ROOMS if layer == "store" else ROOMS[layer]


def room_of(layer: str, names: list[str]) -> str:
    """Return the room of a module, whose dotted name within the layer is given in parts."""
    whole = ".".join(names[:2])
    return whole if whole in rooms(layer) else names[0]


def own_room(path: Path) -> str:
    layer = layer_of(path)
    return room_of(layer, list(path.relative_to(PACKAGE / layer).with_suffix("").parts))


def is_lower_room(path: Path, name: list[str]) -> bool:
    """Return whether a module imports its own room, one that it may, a front door or a layer."""
    layer = layer_of(path)
    if name[:2] != ["firetrail", layer] or len(name) == 2:
        return True
    own, other = own_room(path), room_of(layer, name[2:])
    if layer == "store":
        return other in {own} | STORE_ROOMS[own]
    return ROOMS[layer].index(own) <= ROOMS[layer].index(other)


def test_every_layer_with_folders_has_rooms() -> None:
    folders = {path.parent.parent.name for path in PACKAGE.glob("*/*/__init__.py")}
    assert len(folders) > 5
    assert not folders - {"store", *ROOMS}, "give its folders an order in ROOMS of this test"


@pytest.mark.parametrize("layer", ["store", *ROOMS])
def test_the_rooms_of_a_layer_have_an_order(layer: str) -> None:
    paths = [path for path in modules(layer) if path.name != "__init__.py"]
    unlisted = {own_room(path) for path in paths} ^ set(rooms(layer))
    assert not unlisted, "give each room its place in ROOMS of this test"
    assert not violations(paths, is_lower_room)


def test_the_rooms_of_the_store_import_what_they_may_and_nothing_in_a_circle() -> None:
    TopologicalSorter(STORE_ROOMS).prepare()  # raises CycleError
    paths = [path for path in modules("store") if path.name != "__init__.py"]
    used = {
        (own_room(path), own_room(other))
        for path in paths
        for other in imported_modules(path)
        if layer_of(other) == "store" and other.name != "__init__.py"
    }
    unused = [
        f"{room}: {other}"
        for room, others in STORE_ROOMS.items()
        for other in others
        if (room, other) not in used
    ]
    assert not unused, "take them off STORE_ROOMS"


def test_an_import_of_a_higher_room_is_found() -> None:
    walk = PACKAGE / "store" / "log" / "walk.py"
    assert not is_lower_room(walk, ["firetrail", "store", "inspect", "view", "StoreView"])
    assert is_lower_room(walk, ["firetrail", "store", "queues", "queue_table", "QueueTable"])
    retention = PACKAGE / "store" / "retention" / "retention.py"
    assert not is_lower_room(retention, ["firetrail", "store", "reads", "reader", "Reader"])
    engine = PACKAGE / "store" / "engine.py"
    assert not is_lower_room(engine, ["firetrail", "store", "store", "Store"])
    assert is_lower_room(engine, ["firetrail", "store", "put", "writer", "Writer"])
    clients = PACKAGE / "broker" / "services" / "clients.py"
    assert not is_lower_room(clients, ["firetrail", "broker", "broker_state", "BrokerState"])
    assert is_lower_room(clients, ["firetrail", "broker", "state", "group_table", "GroupTable"])
