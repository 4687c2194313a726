"""The settings of a group in the guide to replication are complete, and form a group."""

from pathlib import Path

from tests.broker.brokers import SMALL
from tests.broker.groups import QUICK, status_of
from tests.client.clusters import until
from tests.clone import ROOT
from tests.docs.pages import blocks
from tests.replication.fake_etcd import fake_etcd

from firetrail.broker.broker import Broker
from firetrail.broker.broker_conf_file import LoadedBroker, load_entries
from firetrail.format.files.java_properties import parse_properties

PAGE = ROOT / "docs/guide/replication.md"


def examples() -> list[LoadedBroker]:
    """Return the settings of the three members."""
    first, second = (
        block.text
        for block in blocks(PAGE)
        if block.language == "properties" and "ha_member" in block.text
    )
    third = second.replace("=2\n", "=3\n").replace("10.0.0.6", "10.0.0.7")
    return [load_entries(parse_properties(text)) for text in (first, second, third)]


async def test_the_example_forms_a_group_without_a_name_server(tmp_path: Path) -> None:
    """The addresses are replaced by those of this machine, and nothing else is added."""
    members: list[Broker] = []
    with fake_etcd() as etcd:
        for loaded in examples():
            assert not loaded.remarks and loaded.broker.name_servers
            config = loaded.broker.replace(
                etcd_endpoints=etcd.endpoint().url, namesrv="", vip_channel=False
            )
            config = config.replace(ha_lease_s=QUICK["ha_lease_s"])
            store = SMALL.replace(
                role=loaded.store.role, store_host=SMALL.store_host._replace(port=0)
            )
            members.append(Broker(tmp_path / str(config.ha_member), config, store))
        try:
            for member in members:
                await member.start()
            await until(lambda: all(status_of(each).in_sync == {1, 2, 3} for each in members))
            known = {number: each.address for number, each in enumerate(members, 1)}
            await until(lambda: all(status_of(each).addresses == known for each in members))
            # These may connect to the HA port of the master, whatever their addresses are.
            assert {*known.values()} <= await members[0]._term._members()
        finally:
            for member in members:
                await member.stop()
