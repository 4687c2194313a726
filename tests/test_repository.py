"""The house rules that a machine can check, over every file of the repository."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest
from tests.clone import IS_CLONE, ROOT, files

LINES_MAX = 500
"""Most lines of a module. Most modules stay below 400. The descriptions of arguments need lines but
add no concept; a module beyond this limit holds more than one concept and can be split."""

PARAMETERS_MAX = 6
"""Parameters of a constructor. Parts that need more get an object with what they share."""
LONG_CONSTRUCTORS = {
    "Broker": "every parameter but the folder is an option that users give by name",
    "PushConsumer": "every parameter after the listener is an option that users give by name",
    "Message": "the fields of a message",
    "RecordFields": "the fields of a record",
    "PutResult": "the fields of a result",
    "GetResult": "the fields of a result",
    "ConsumeQueue": "names the files of one queue, and how they are opened",
    "SegmentQueue": "names the files of one byte range, and how they are opened",
    "Segment": "names one file, and how it is opened",
    "LogWalk": "the range of a walk, and options that callers give by name",
    "Picker": "the conditions of one search, which compiled code tests per record",
    "QueueCursor": "the limits of one read, which compiled code tests per message",
    "Selection": "the limits of one read, which compiled code tests per message",
}
"""Classes with more parameters than that, and the reason: theirs are values, not other parts."""

NOUNS = {
    "remoting": "RocketMQ's name of its protocol",
    "polling": "long polling is a mechanism",
    "packaging": "the subject of test_packaging.py",
    "testing": "the public module firetrail.testing",
    "decoding": "the counterpart of encoding, a term of the field",
}
"""Names of modules and folders that end in "ing", and what makes them nouns."""

SHARED_NAMES = {
    **dict.fromkeys(
        ("backup", "broker", "proxy", "rebuild", "salvage"), "a command, and what it runs"
    ),
    **dict.fromkeys(("ids", "properties"), "a subject, and the kernel with its loops"),
    "index": "RocketMQ's word for the file, whose loops are a kernel, and for all files of a store",
    "text": "a layer with text for people, and the kernel that reads UTF-8",
    **dict.fromkeys(("codes", "frames"), "each protocol has its own: remoting and HTTP/2"),
}
"""Names that several modules of the package have, and the reason."""

ARGUMENTS_MAX = 8
"""Parameters of a function. Values that travel together are an object. Constructors have a limit of
their own; dataclasses, such as the headers of RocketMQ's requests, are declared as fields."""
LONG_FUNCTIONS = {
    "archive": "every parameter after the lake is an option that users give by name",
    "table": "every parameter after the target is an option that users give by name",
    "replay": "every parameter after the target is an option that users give by name",
}

FUNCTION_LINES_MAX = 60
"""Lines of a function without its docstring. A longer one does several things, which have names."""
LONG_BODIES = {
    "format/kernels/derive.py derive_units": "a kernel: calls cost more than they do",
    "format/kernels/encode.py write_batch": "a kernel, as above",
    "store/kernels/answer.py get": "a kernel, as above",
    "cli/spark_jobs/pipeline_table.py add": "the options of tables, as pipeline/tables for now",
}
"""Functions that are longer, and the reason."""
POSITIONAL_MAX = 6
"""Positional arguments of a call of a named tuple or a dataclass. Nobody reads more by their place,
and two of the same type are swapped easily."""
POSITIONAL_CALLS = {
    f"src/firetrail/pipeline/tables/{name}.py"
    for name in (
        "keyed/bucket_change",
        "row_task",
        "runs/decoding_rounds",
        "runs/explanation",
        "runs/retry_job",
        "runs/table_job",
        "runs/table_result",
        "runs/table_status",
    )
}
"""Modules with calls that have more. This list only shrinks."""

# Where packages come from is each user's own setting.
REGISTRY = re.compile(
    r"pypi\.org|pythonhosted\.org|repo\d?\.maven\.|maven\.org/|maven\.apache\.org/maven2"
    r"|registry\.npmjs|proxy\.golang|maven\.aliyun|--(?:extra-)?index-url|<mirror(?:Of)?>"
)
# Words that begin a clause. A module head is a noun phrase that a reader can file.
CLAUSE = re.compile(r"(?:What|Who|Whose|Whom|How|Which|Where|When|Why|Whether)\b", re.I)
# A verb or a gerund, with which a sentence about an activity begins.
ACTIVITY = re.compile(
    r"\w+ing\b(?! blocks)|Until\b|(?:Write|Passes|Packs|Selects|Classifies|Gathers)\b"
    r"|[A-Z]\w*s (?:the|an?|one|all|every|its|records|messages|keys)\b"
)
# Metaphors, which do not name the subject of a class.
FIGURES_OF_SPEECH = {
    *("Sight", "Patience", "Lives", "Homeless", "Turns", "Toll", "Rivals", "Overrun"),
    *("Presence", "Shower", "Weighty", "Chooser", "Twins", "Wording", "Flaw", "Woken"),
    *("Parcel", "Life"),
}
# A default that the reader has to work out.
UNNAMED_DEFAULT = re.compile(r"Default:\s+(?:it|they|this|that is|nothing|nobody|everybody)\b")
# Words for which the style guide has better ones.
AVOIDED = re.compile(
    r"\b(?:whoever|anew|so many|any more|not any longer|How often|inside of)\b"
    r"|(?<![Tt]here )\bis no (?!longer\b|more\b)[a-z]+"
)
# The folders of one machine.
MACHINE_PATH = re.compile(r"(?<![\w.~/})-])/(?:work|root|home|Users)(?=/|\b)")


@cache
def texts() -> dict[str, str]:
    """Return name and content of every text file; captures from real brokers are not text."""
    found = {}
    for path in files():
        name = path.relative_to(ROOT)
        content = path.read_bytes()
        if "golden" not in name.parts and b"\0" not in content:
            found[name.as_posix()] = content.decode("utf-8")
    return found


def modules() -> dict[str, str]:
    return {name: text for name, text in texts().items() if name.endswith(".py")}


class Facts(NamedTuple):
    """What the syntax tree of a module says; the trees themselves need hundreds of megabytes."""

    docstring: str
    type_names: list[str]
    constructors: list[tuple[str, int]]
    functions: list[tuple[str, int]]
    bodies: list[tuple[str, int]]
    records: list[str]
    calls: list[tuple[str, int]]


@cache
def facts() -> dict[str, Facts]:
    return {name: facts_of(ast.parse(text)) for name, text in modules().items()}


def facts_of(module: ast.Module) -> Facts:
    return Facts(
        ast.get_docstring(module) or "",
        list(type_names(module)),
        list(constructors(module)),
        list(functions(module)),
        list(bodies(module)),
        list(records(module)),
        list(positional_calls(module)),
    )


def source_facts() -> dict[str, Facts]:
    return {name: found for name, found in facts().items() if name.startswith("src/")}


def matches(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


pytestmark = [
    pytest.mark.skipif(
        not IS_CLONE, reason="only in a clone: git says which files are the project's"
    ),
    pytest.mark.xdist_group("repository"),  # one process reads all files
]


def test_no_registry_addresses() -> None:
    assert not matches(REGISTRY), "package sources belong in the user's pip and Maven settings"


def test_no_paths_of_one_machine() -> None:
    assert not matches(MACHINE_PATH), "write paths relative to the repository"


def test_modules_are_short() -> None:
    lengths = {name: len(text.splitlines()) for name, text in modules().items()}
    long = {name: count for name, count in lengths.items() if count > LINES_MAX}
    assert not long, (
        f"modules have at most {LINES_MAX} lines: move one concept of the module, with its tests,"
        " into a module of its own (config_groups.py was split off store/settings/store_config.py)"
    )


def test_modules_are_nouns() -> None:
    """A module is a thing and not an activity: ``recovery``, not ``recovering``."""
    found = {
        name
        for name in modules()
        if name.startswith(("src/", "tests/", "benchmarks/"))
        for part in name.removesuffix(".py").split("/")
        if part.endswith("ing") and part.rpartition("_")[2] not in NOUNS
    }
    assert not found, "name the result, or add a reason to NOUNS of this test"


def test_names_of_modules_differ_by_more_than_a_letter() -> None:
    """``term`` beside ``terms`` says nothing about the difference."""
    names = {name.rpartition("/")[2].removesuffix(".py") for name in modules() if in_source(name)}
    assert len(names) > 400
    assert not [(name, near) for name in sorted(names) for near in names & near_names(name)]


def test_a_name_of_a_module_means_one_thing() -> None:
    """A reader who hears ``columns`` knows which module is meant."""
    names = Counter(name.rpartition("/")[2] for name in modules() if in_source(name))
    shared = {name.removesuffix(".py") for name, count in names.items() if count > 1}
    assert shared == SHARED_NAMES.keys(), "say what is different: sink_columns, table_columns"


def in_source(name: str) -> bool:
    return name.startswith("src/") and not name.endswith("__.py")


def near_names(name: str) -> set[str]:
    """Return the names that are one letter shorter, and the singular of a plural."""
    shorter = {name[:at] + name[at + 1 :] for at in range(len(name))}
    return shorter | {re.sub(r"ies$", "y", name), re.sub(r"es$", "", name)} - {name}


def test_a_plural_and_its_singular_are_near() -> None:
    assert "term" in near_names("terms") and "body" in near_names("bodies")
    assert "batch" in near_names("batches") and "status" not in near_names("status")
    assert "stats" in near_names("status")


def test_every_module_says_what_it_is() -> None:
    assert not [name for name, found in facts().items() if not found.docstring]


def test_module_heads_are_noun_phrases() -> None:
    heads = {name: found.docstring.partition("\n")[0] for name, found in facts().items()}
    found = {name: head for name, head in heads.items() if CLAUSE.match(head)}
    assert not found, "say what the module is: 'The limits of a user', not 'What a user may use'"
    product = {name: head for name, head in heads.items() if not name.startswith("tests/")}
    found = {name: head for name, head in product.items() if ACTIVITY.match(head)}
    assert not found, "say what the module is: 'The scan of a log', not 'Scans a log'"


def test_defaults_in_docstrings_are_values() -> None:
    sources = {name: text for name, text in modules().items() if name.startswith("src/")}
    found = [name for name, text in sources.items() if UNNAMED_DEFAULT.search(text)]
    assert not found, "say the value: 'Default: False.', not 'Default: it is not.'"


def test_the_package_avoids_words_of_the_style_guide() -> None:
    found = [place for place in matches(AVOIDED) if place.startswith("src/")]
    assert not found, "name the subject; write 'no longer', 'is not a', 'the number of', 'inside'"


def test_text_files_are_tidy() -> None:
    untidy = [
        name
        for name, text in texts().items()
        if text and (not text.endswith("\n") or "\r" in text or re.search(r"[ \t]+$", text, re.M))
    ]
    assert not untidy, "files end with a newline; lines end without blanks and carriage returns"


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (MACHINE_PATH, "cd /" + "work/main", True),
        (MACHINE_PATH, 'path = "/' + 'home"', True),
        (MACHINE_PATH, "see docs/root/page and https://example.org/home", False),
        (MACHINE_PATH, "${user.home}/store", False),
        (REGISTRY, "https://pypi" + ".org/simple", True),
        (REGISTRY, "org.apache.maven.plugins", False),
        (UNNAMED_DEFAULT, "Default: it is not.", True),
        (UNNAMED_DEFAULT, "Default:\n    nothing is kept.", True),
        (UNNAMED_DEFAULT, "Default: False. It is not kept.", False),
        (AVOIDED, "The text is no number.", True),
        (AVOIDED, "There is no store, and the other is no longer open.", False),
        (CLAUSE, "What a slave refuses.", True),
        (CLAUSE, "Whether a port is open.", True),
        (CLAUSE, "Whole numbers in text.", False),
        (ACTIVITY, "Pulling messages from a queue.", True),
        (ACTIVITY, "Keeps a former master from accepting messages.", True),
        (ACTIVITY, "Reads by queue offset, by key and by time.", False),
        (ACTIVITY, "The scan of a log.", False),
    ],
)
def test_the_patterns_match_nothing_else(
    pattern: re.Pattern[str], line: str, expected: bool
) -> None:
    assert bool(pattern.search(line)) is expected


def test_a_name_of_a_type_means_one_thing() -> None:
    """Classes anywhere in the package, and aliases of types at the top of modules."""
    places: dict[str, list[str]] = {}
    for name, found in source_facts().items():
        for type_name in found.type_names:
            places.setdefault(type_name, []).append(name)
    assert len(places) > 400
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


def test_names_of_types_are_words_of_the_field() -> None:
    names = {type_name for found in source_facts().values() for type_name in found.type_names}
    found = {name for name in names if FIGURES_OF_SPEECH & set(re.findall("[A-Z][a-z]+", name))}
    assert not found, "name the subject: LogFingerprint, not Sight"


def type_names(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name) and re.match(r"_?[A-Z]\w*[a-z]", target.id):
                    yield target.id


def test_classes_and_aliases_are_names_of_types() -> None:
    module = ast.parse("class A:\n class _B: ...\nAlias = int\nLIMIT = 3\nT = TypeVar('T')")
    assert list(type_names(module)) == ["A", "B", "Alias"]


def test_the_logger_of_a_module_has_one_name() -> None:
    own = re.compile(r"^(\w+) = logging\.getLogger\(__name__\)$", re.M)
    found = {name: own.findall(text) for name, text in modules().items() if name.startswith("src/")}
    assert sum(names == ["_log"] for names in found.values()) > 30
    assert not {name: names for name, names in found.items() if names not in ([], ["_log"])}


def test_constructors_take_few_parameters() -> None:
    counts = dict(each for found in source_facts().values() for each in found.constructors)
    assert len(counts) > 200
    long = {name: count for name, count in counts.items() if count > PARAMETERS_MAX}
    assert long.keys() == LONG_CONSTRUCTORS.keys()


def constructors(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of classes, and how many parameters their constructors have."""
    classes = (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    for node in classes:
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                given = member.args
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                yield node.name, count


def test_parameters_by_name_count_and_self_does_not() -> None:
    module = ast.parse("class A:\n def __init__(self, a, /, b, *, c=1): ...")
    assert list(constructors(module)) == [("A", 3)]
    module = ast.parse("class A:\n async def f(self, a, /, b, *, c=1): ...\ndef g(a, *b): ...")
    assert sorted(functions(module)) == [("f", 3), ("g", 1)]


def test_functions_take_few_parameters() -> None:
    counts = [each for found in source_facts().values() for each in found.functions]
    assert len(counts) > 5000
    assert {name for name, count in counts if count > ARGUMENTS_MAX} == LONG_FUNCTIONS.keys()


def functions(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of functions other than constructors, and how many parameters they have."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__":
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            yield node.name, len([each for each in given if each.arg not in ("self", "cls")])


def test_functions_are_short() -> None:
    counts = {
        f"{name.removeprefix('src/firetrail/')} {function}": count
        for name, found in source_facts().items()
        for function, count in found.bodies
        if count > FUNCTION_LINES_MAX and "/pipeline/tables/" not in name
    }
    assert counts.keys() == LONG_BODIES.keys(), "move one of the things that it does to a function"


def bodies(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of functions, and the lines of each without its docstring."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, end = node.body[0], node.end_lineno or 0
            begin = node.lineno
            if ast.get_docstring(node) is not None:
                begin += (first.end_lineno or 0) - first.lineno + 1
            yield node.name, end - begin + 1


def test_a_docstring_does_not_make_a_function_long() -> None:
    module = ast.parse('def f():\n """One.\n\n Two."""\n return 1\n\nasync def g():\n return 2')
    assert list(bodies(module)) == [("f", 2), ("g", 2)]


def test_fields_of_records_are_given_by_name() -> None:
    sources = source_facts()
    names = {record for found in sources.values() for record in found.records}
    assert len(names) > 400
    long = {
        name
        for name, found in sources.items()
        for called, count in found.calls
        if called in names and count > POSITIONAL_MAX
    }
    assert not long - POSITIONAL_CALLS, f"name the fields: at most {POSITIONAL_MAX} by position"
    assert not POSITIONAL_CALLS - long, "take the modules off POSITIONAL_CALLS"


def records(module: ast.Module) -> Iterator[str]:
    """Yield the names of named tuples and dataclasses."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
            if "dataclass" in marks or "NamedTuple" in map(ast.unparse, node.bases):
                yield node.name


def positional_calls(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names of what is called, and the number of positional arguments."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if len(node.args) > 1 and name[-1:].isalnum():
                yield name, len(node.args)


def test_calls_of_named_tuples_and_dataclasses_are_found() -> None:
    module = ast.parse("class A(NamedTuple): 0\n@dataclass(frozen=True)\nclass _B: 0\nclass C: 0")
    assert list(records(module)) == ["A", "_B"]
    module = ast.parse("a.A(1, 2, x=3)\nB(*args, 1)\nc(1)\nd[0](1, 2)")
    assert list(positional_calls(module)) == [("A", 2), ("B", 2)]
