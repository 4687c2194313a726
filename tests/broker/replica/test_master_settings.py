"""A replica has the names and sizes of its master."""

from pathlib import Path

import pytest
from tests.broker.brokers import SMALL, Talk

from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.broker.replica.master_settings import AdoptedSettings, find_master, replica_settings
from firetrail.errors import NoSuchError, NotReachedError, ReplicationError
from firetrail.format.values.delay import DelayLevels
from firetrail.format.values.hosts import Host
from firetrail.replication.replica.master_check import Master
from firetrail.store.settings.store_config import BrokerRole
from firetrail.system import SYSTEM


async def test_names_and_sizes_are_adopted() -> None:
    store = SMALL.replace(
        delay_levels=DelayLevels.parse("1s 2s"), light_queues=True, file_reserved_hours=168
    )
    config = BrokerConfig(name="orders", cluster="shop", property_filter=False)
    async with Broker.running(config=config, store=store) as master:
        broker, adopted = await replica_settings(master.address, 3)
    assert (broker.name, broker.cluster, broker.broker_id) == ("orders", "shop", 3)
    assert (broker.master_address, broker.slave_read) == (master.address, True)
    assert broker.property_filter  # not one of the settings that must be equal
    same = adopted.replace(role=store.role, store_host=store.store_host)
    assert adopted.role is BrokerRole.SLAVE
    for name in (
        *("commit_log_file_size", "consume_queue_file_size", "index_slots", "index_entries"),
        *("max_message_size", "delay_levels", "light_queues", "file_reserved_hours"),
    ):
        assert getattr(same, name) == getattr(store, name), name


async def test_a_slave_is_not_followed() -> None:
    store = SMALL.replace(role=BrokerRole.SLAVE)
    async with Broker.running(config=BrokerConfig(broker_id=2), store=store) as slave:
        with pytest.raises(ReplicationError, match="is a slave itself, with brokerId 2; give the"):
            await replica_settings(slave.address)


async def test_what_is_no_broker_is_named(talk: Talk) -> None:
    is_not = f"{talk.broker.namesrv} is the address of a name server, not of a broker; give the"
    known = rf"the masters that it knows: broker-a at {talk.broker.address}\)"
    with pytest.raises(ReplicationError, match=f"^{is_not} .*{known}"):
        await replica_settings(talk.broker.namesrv)
    message = r"of the master does not answer: 127.0.0.1:1: cannot .* address of a running broker"
    with pytest.raises(NotReachedError, match=message):
        await replica_settings("127.0.0.1:1")


async def test_an_ha_port_is_named(tmp_path: Path) -> None:
    here = Host("127.77.0.9", 31111)  # an address of its own, so that both ports are free
    master = Broker(tmp_path, BrokerConfig(bind=here.ip), SMALL.replace(store_host=here))
    await master.start()
    try:
        message = "127.77.0.9:31112 is the address of an HA port, not of a broker; give the address"
        with pytest.raises(ReplicationError, match=f"^{message} of its broker, 127.77.0.9:31111$"):
            await replica_settings("127.77.0.9:31112")
    finally:
        await master.stop()


async def test_an_ha_port_far_from_the_port_of_its_broker_is_named() -> None:
    async with Broker.running(store=SMALL) as master:
        address = master.config.ha_address  # both ports are free ones
        message = f"{address} is the address of an HA port, .* whose port is listenPort in its"
        with pytest.raises(ReplicationError, match=message):
            await replica_settings(address)


@pytest.mark.parametrize(("told", "known"), [("h:9876;i:9876", ["h:9876", "i:9876"]), ("?", [])])
async def test_the_name_servers_of_the_master_are_known(
    monkeypatch: pytest.MonkeyPatch, told: str, known: list[str]
) -> None:
    """The replica does not register with them before it is promoted."""

    async def settings(_: Master) -> dict[str, str]:
        return {"brokerName": "b", "namesrvAddr": told}

    monkeypatch.setattr(Master, "settings", settings)
    broker, _ = await replica_settings("127.0.0.1:1")
    assert (broker.name_servers, broker.name_servers_as_master) == ([], known)


def test_the_adopted_settings_are_kept_in_the_store(tmp_path: Path) -> None:
    assert AdoptedSettings.load(SYSTEM, tmp_path) is None
    adopted = AdoptedSettings({"brokerName": "b", "namesrvAddr": "h:1"})
    (tmp_path / "config").mkdir()
    adopted.save(SYSTEM, tmp_path)
    assert AdoptedSettings.load(SYSTEM, tmp_path) == adopted
    assert adopted.with_name_servers(None) == adopted
    broker, store = adopted.with_name_servers("i:1").of_replica("h:2", 3)
    assert (broker.name, broker.broker_id, broker.master_address) == ("b", 3, "h:2")
    assert (store.role, broker.promoted_namesrv) == (BrokerRole.SLAVE, "i:1")


async def test_a_master_is_found_by_its_name(talk: Talk) -> None:
    namesrv = talk.broker.namesrv
    assert await find_master(f"127.0.0.1:1;{namesrv}", "broker-a") == talk.broker.address
    with pytest.raises(NoSuchError, match=r"knows no broker 'broker-b'.*it knows: broker-a"):
        await find_master(namesrv, "broker-b")
    await talk.broker.become(BrokerRole.SLAVE, 1)
    assert talk.broker.replica is not None
    await talk.broker.replica.trust()  # otherwise it registers after it has found a master
    with pytest.raises(NotReachedError, match="but no master of it is running"):
        await find_master(namesrv, "broker-a")
    with pytest.raises(NotReachedError, match=r"no name server answers: 127.0.0.1:1: cannot be"):
        await find_master("127.0.0.1:1", "broker-a")
