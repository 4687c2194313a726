"""The master of a slave, as name servers know it."""

from pathlib import Path

from tests.broker.brokers import SMALL
from tests.client.clusters import until

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.services.registered_masters import RegisteredMaster, RegisteredMasters
from firetrail.settings.settings_table import Live
from firetrail.store.settings.store_config import BrokerRole

A = RegisteredMaster("10.0.0.1:10911", "10.0.0.1:10912")
B = RegisteredMaster("b:1", "b:2")


def masters_of(broker_id: int = 1) -> RegisteredMasters:
    return RegisteredMasters(Live(BrokerConfig(broker_id=broker_id)), "s:1")


def test_another_master_is_announced() -> None:
    masters, announced = masters_of(), list[RegisteredMaster]()
    masters.on_change = announced.append
    for master in (None, A, A, None, A, B):
        masters.note("n1", master)
    assert announced == [A, B]
    assert masters.known == B


def test_the_known_master_stays_when_no_name_server_knows_one() -> None:
    masters = masters_of()
    masters.note("n1", A)
    assert masters.are_named()
    masters.note("n1", None)
    assert masters.known == A
    assert not masters.are_named()


def test_while_name_servers_disagree_the_known_master_stays() -> None:
    masters = masters_of()
    masters.note("n1", A)
    masters.note("n2", B)
    assert masters.known == A
    masters.note("n1", None)
    assert masters.known == B


def test_a_master_follows_nobody() -> None:
    masters = masters_of(broker_id=0)
    masters.note("n1", A)
    assert masters.known is None


def test_a_slave_does_not_take_itself_for_its_master() -> None:
    """A name server that was not reached at a change of role lists it as master."""
    masters = masters_of()
    masters.note("n1", RegisteredMaster("s:1", "s:2"))
    assert masters.known is None
    assert not masters.are_named()


async def test_a_slave_learns_its_master_from_a_name_server(tmp_path: Path) -> None:
    async with Broker.running(store=SMALL) as master:
        config = BrokerConfig(broker_id=1, namesrv=master.namesrv)
        store = SMALL.replace(role=BrokerRole.SLAVE)
        async with Broker.running(tmp_path, config, store) as slave:
            masters = slave._parts.registration.masters
            await until(lambda: masters.known is not None)
            assert masters.known is not None
            assert masters.known.address == master.address
            assert master._name_server is not None
            routes = master._name_server.routes

            def addresses() -> dict[int, str]:
                registered = routes.broker("broker-a")
                return registered.broker_addrs if registered is not None else {}

            await until(lambda: addresses() == {0: master.address, 1: slave.address})
