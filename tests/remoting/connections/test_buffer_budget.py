"""The bytes that a server keeps for its connections."""

from firetrail.remoting.connections.buffer_budget import BufferBudget


class Peer:
    """A connection that keeps bytes."""

    def __init__(self, budget: BufferBudget, *, is_proven: bool = False) -> None:
        self._budget = budget
        self.is_proven = is_proven
        self.kept_bytes = 0
        self.reasons: list[str] = []

    def keep(self, size: int, *, progress: bool = False) -> None:
        self.kept_bytes = size
        self._budget.note(self, size, progress=progress)

    def drop(self, reason: str) -> None:
        self.kept_bytes = 0
        self.reasons.append(reason)


def test_the_slowest_stranger_is_dropped_first() -> None:
    budget = BufferBudget(1_000_000, 100_000)
    known = Peer(budget, is_proven=True)
    known.keep(500_000)
    slow, small, quick, late = (Peer(budget) for _ in range(4))
    small.keep(1_000)
    quick.keep(40_000)
    slow.keep(40_000)
    quick.keep(40_000, progress=True)
    late.keep(40_000)
    assert [len(peer.reasons) for peer in (known, slow, small, quick, late)] == [0, 1, 0, 0, 0]
    assert slow.reasons[0].startswith(
        "it keeps 40000 bytes of unfinished frames and unread answers"
    )
    assert (budget.total, budget.strangers) == (581_000, 81_000)


def test_strangers_are_dropped_before_known_clients() -> None:
    budget = BufferBudget(1_000_000, 100_000)
    known, stranger = Peer(budget, is_proven=True), Peer(budget)
    known.keep(900_000)
    stranger.keep(90_000)
    other = Peer(budget, is_proven=True)
    other.keep(60_000)
    assert (len(stranger.reasons), len(known.reasons), len(other.reasons)) == (1, 1, 0)
    assert (budget.total, budget.strangers) == (60_000, 0)


def test_a_client_that_has_succeeded_no_longer_counts_as_a_stranger() -> None:
    budget = BufferBudget(1_000_000, 100_000)
    peer = Peer(budget)
    peer.keep(90_000)
    budget.prove(peer)
    assert (budget.total, budget.strangers, peer.is_proven) == (90_000, 0, True)
    peer.keep(900_000)
    peer.keep(0)
    assert (budget.total, peer.reasons) == (0, [])


def test_nobody_is_dropped_if_peers_have_read_meanwhile() -> None:
    budget = BufferBudget(1_000_000, 100_000)
    one, two = Peer(budget), Peer(budget)
    one.keep(90_000)
    one.kept_bytes = 0
    two.keep(90_000)
    assert (one.reasons, two.reasons, budget.total) == ([], [], 90_000)
