"""The verdict on a ledger finds every kind of fault, and no fault where there is none."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.torture.group.bridge import NoNamespaces, check_namespaces
from tests.torture.group.cluster_rounds import Row, table
from tests.torture.records.witness_ledger import Found, Ledger, Place, Verdict, body_of, name_in

PLACE: Place = ("Plain", 0)
LATER: Place = ("Later", 0)


def sent(name: str, at: float, place: Place = PLACE, due: int = 0) -> dict[str, Any]:
    entry = {"kind": "sent", "name": name, "at": at, "due": due}
    return {**entry, "topic": place[0], "queue": place[1]}


def ok(name: str, at: float, offset: int) -> dict[str, Any]:
    return {"kind": "ok", "name": name, "at": at, "offset": offset}


def failed(name: str, at: float, why: str = "TimeoutError") -> dict[str, Any]:
    return {"kind": "failed", "name": name, "at": at, "why": why}


def read(name: str, offset: int) -> dict[str, Any]:
    return {"kind": "read", "name": name, "at": 9.0, "topic": "Plain", "queue": 0, "offset": offset}


def judged(entries: list[dict[str, Any]], found: Mapping[Place, list[str]]) -> Verdict:
    """Return the verdict on a ledger, if the queues have the messages with these names."""
    ledger = Ledger.parsed(json.dumps(entry) for entry in entries)
    return ledger.judged(
        {
            place: [Found(offset, body_of(name), 5000) for offset, name in enumerate(names)]
            for place, names in found.items()
        }
    )


BASE = [
    {"kind": "go", "at": 1.0},
    *(sent("a", 1.0), ok("a", 1.5, 0)),
    *(sent("b", 2.0), failed("b", 5.0)),
    *(sent("c", 6.0), ok("c", 6.5, 1)),
    {"kind": "rest", "at": 7.0},
]


def test_a_message_of_unknown_outcome_may_be_stored_or_not() -> None:
    assert judged(BASE, {PLACE: ["a", "c"]}).wrong == {}
    late = [*BASE[:5], sent("c", 6.0), ok("c", 6.5, 2)]
    assert judged(late, {PLACE: ["a", "b", "c"]}).wrong == {}


def test_the_figures_are_those_of_the_last_period() -> None:
    assert judged(BASE, {PLACE: ["a", "c"]}).figures == {
        "acknowledged": 2,
        "not acknowledged": 1,
        "delays repeated": 0,
        "longest without": 5.0,
        "longest refusal": 4.5,
    }
    later = [*BASE, {"kind": "go", "at": 8.0}, sent("d", 8.0), ok("d", 8.5, 2)]
    assert judged(later, {PLACE: ["a", "c", "d"]}).figures["acknowledged"] == 1


@pytest.mark.parametrize(
    ("more", "found", "kinds"),
    [
        ([], ["a"], {"lost"}),
        ([], ["c", "a"], {"lost", "out of order"}),
        ([], ["a", "c", "a"], {"repeated", "out of order"}),
        ([], ["a", "c", "c"], {"repeated"}),
        ([], ["a", "c", "x"], {"invented"}),
        ([read("c", 1)], ["a", "c"], set()),
        ([read("b", 2)], ["a", "c"], {"read and lost"}),
        ([read("b", 1)], ["a", "c"], {"read and lost"}),
        ([read("b", 1), read("c", 1)], ["a", "c"], {"read and lost", "changed after it was read"}),
        ([sent("r", 8.0), failed("r", 8.1, "code 14")], ["a", "c", "r"], {"refused but stored"}),
        (
            [{"kind": "back", "topic": "Plain", "queue": 0, "offset": 7, "to": 2}],
            ["a", "c"],
            {"set back"},
        ),
        ([sent("d", 8.0)], ["a", "d", "c"], {"lost", "out of order"}),
    ],
)
def test_each_fault_is_found(more: list[dict[str, Any]], found: list[str], kinds: set[str]) -> None:
    assert set(judged([*BASE, *more], {PLACE: found}).wrong) == kinds


def test_a_message_that_was_read_after_the_queue_is_not_missed() -> None:
    """A request that was delayed by the network is stored after the client gave up."""
    ledger = Ledger.parsed(json.dumps(entry) for entry in BASE)
    before = dict(ledger.read)
    ledger.read[PLACE, 2] = "b"
    found = {PLACE: [Found(offset, body_of(name), 1) for offset, name in enumerate("ac")]}
    assert set(ledger.judged(found).wrong) == {"read and lost"}
    assert ledger.judged(found, before).wrong == {}


def test_a_gap_between_offsets_is_found() -> None:
    ledger = Ledger.parsed(json.dumps(entry) for entry in BASE)
    verdict = ledger.judged({PLACE: [Found(0, body_of("a"), 1), Found(2, body_of("b"), 1)]})
    assert set(verdict.wrong) == {"gap", "lost"}


@pytest.mark.parametrize(
    ("due_ms", "found", "kinds"),
    [
        (4999, ["later"], set()),
        (5001, ["later"], {"early"}),
        (4999, [], {"lost"}),
        (4999, ["later", "later"], set()),
    ],
)
def test_delayed_messages_arrive_at_least_once_and_not_early(
    due_ms: int, found: list[str], kinds: set[str]
) -> None:
    entries = [sent("later", 1.0, LATER, due_ms), ok("later", 1.1, 77)]
    verdict = judged(entries, {LATER: found})
    assert set(verdict.wrong) == kinds
    assert verdict.figures["delays repeated"] == (len(found) > 1)


def test_a_body_says_what_was_sent() -> None:
    body = body_of("Plain-1-17")
    assert name_in(body) == "Plain-1-17"
    assert name_in(body[:-1]) is None
    assert name_in(body.replace(b"17", b"18", 1)) is None
    assert name_in(b"\xff") is None


def test_an_unknown_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="no entries of the kind guess"):
        Ledger.parsed(['{"kind": "guess", "at": 1}'])


def test_a_row_fits_into_the_table() -> None:
    row = Row()
    figures = {"acknowledged": 1234, "longest without": 7.26, "longest refusal": 7.3}
    row.add({"figures": figures, "wrong": {"lost": [2, "a"], "early": [1, "b"]}}, 1)
    assert (row.lost, row.wrong, row.decisions) == (2, 1, 1)
    assert table([("a fault", row)]).endswith("\n| a fault | 1 | 1,234 | 2 | 7.3 s |")


def test_a_user_without_rights_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NoNamespaces, match="need root: run this as root"):
        check_namespaces()
    monkeypatch.setattr("shutil.which", lambda name: None if name == "nft" else f"/bin/{name}")
    with pytest.raises(NoNamespaces, match="nft not found: install iproute2, nftables"):
        check_namespaces()
