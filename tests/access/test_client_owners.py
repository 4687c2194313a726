"""Client ids belong to the user who used them first."""

import pytest
from tests.access.actors import credentials

from firetrail.access import client_owners as module
from firetrail.access.client_owners import HELD_S, ClientOwners
from firetrail.auth.caller import Caller
from firetrail.auth.policies import User
from firetrail.errors import RequestError


class Time:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def owners(time: Time) -> ClientOwners:
    return ClientOwners(time)


def caller(name: str) -> Caller:
    return Caller(User(name, credentials(name).secret_key), "10.0.0.1", is_checked=True)


ALICE, EVE = caller("alice"), caller("eve")


def test_an_id_belongs_to_its_first_user(owners: ClientOwners) -> None:
    owners.claim("c1", ALICE)
    owners.claim("c1", ALICE)  # another process of the same user, or a reconnect
    owners.claim("c2", EVE)
    for attempt in (owners.claim, owners.check):
        with pytest.raises(RequestError) as raised:
            attempt("c1", EVE)
        assert (raised.value.code, raised.value.remark) == (
            16,
            "client c1 belongs to another user; use another client id, or wait "
            "until this one was not used for 600 s",
        )
    owners.check("c3", EVE)
    assert len(owners) == 2


def test_an_id_is_free_when_it_was_not_used_for_a_while(owners: ClientOwners, time: Time) -> None:
    owners.claim("c1", ALICE)
    time.now += HELD_S - 1
    owners.claim("c1", ALICE)
    time.now += HELD_S - 1
    with pytest.raises(RequestError):
        owners.claim("c1", EVE)
    time.now += 1
    owners.claim("c1", EVE)
    with pytest.raises(RequestError):
        owners.claim("c1", ALICE)


def test_only_its_user_gives_an_id_up(owners: ClientOwners) -> None:
    owners.claim("c1", ALICE)
    owners.release("c1", EVE)
    owners.release("unknown", EVE)
    with pytest.raises(RequestError):
        owners.claim("c1", EVE)
    owners.release("c1", ALICE)
    owners.claim("c1", EVE)


def test_a_trusted_address_has_an_identity_of_its_own(owners: ClientOwners) -> None:
    trusted = Caller(None, "10.0.0.1", is_checked=False, trusted_as="")
    owners.claim("c1", trusted)
    owners.claim("c1", trusted)
    with pytest.raises(RequestError):
        owners.claim("c1", EVE)


def test_a_user_gives_up_its_own_ids_first(
    owners: ClientOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDS_PER_USER", 3)
    monkeypatch.setattr(module, "IDS_MAX", 5)
    owners.claim("a", ALICE)
    for number in range(10):
        owners.claim(f"e{number % 5}", EVE)
    owners.claim("e2", EVE)  # used again, so it is not the next one to go
    owners.claim("e9", EVE)
    assert (list(owners._ids["eve"]), list(owners._ids["alice"])) == (["e4", "e2", "e9"], ["a"])
    bob, carol = caller("bob"), caller("carol")
    owners.claim("b", bob)
    owners.claim("c", carol)
    assert list(owners._ids["eve"]) == ["e2", "e9"]
    assert len(owners) == 5
    with pytest.raises(RequestError):
        owners.claim("a", EVE)
