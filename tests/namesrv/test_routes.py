"""The tables of a name server, without a network."""

from typing import Any

import pytest

from firetrail.namesrv.routes import EXPIRY_S, Registration, Routes
from firetrail.remoting.messages.bodies import DataVersion, QueueData, TopicConfig, TopicConfigTable


def table(*names: str, version: int = 1, **settings: Any) -> TopicConfigTable:
    topics = {name: TopicConfig(name, 4, 4, **settings) for name in names}
    return TopicConfigTable(topics, DataVersion(version, 1000))


def master(name: str = "a", cluster: str = "C") -> Registration:
    return Registration(cluster, name, f"{name}:10911", ha_address=f"{name}:10912")


def follower(name: str = "a") -> Registration:
    return Registration("C", name, f"{name}-1:10911", 1)


def brokers_of(routes: Routes, topic: str) -> dict[str, dict[int, str]]:
    route = routes.route(topic)
    return {data.broker_name: data.broker_addrs for data in route.broker_datas} if route else {}


def test_a_route_lists_all_brokers_of_a_topic() -> None:
    routes = Routes()
    routes.register(master("a"), table("T"), 0.0)
    routes.register(master("b"), table("T", "U"), 0.0)
    assert brokers_of(routes, "T") == {"a": {0: "a:10911"}, "b": {0: "b:10911"}}
    assert brokers_of(routes, "U") == {"b": {0: "b:10911"}}
    route = routes.route("T")
    assert route and route.queue_datas == [QueueData("a", 4, 4, 6), QueueData("b", 4, 4, 6)]
    assert routes.route("V") is None


def test_brokers_are_listed_by_cluster() -> None:
    routes = Routes()
    routes.register(master("a"), table("T"), 0.0)
    routes.register(follower("a"), table("T"), 0.0)
    routes.register(master("b", "D"), table("U"), 0.0)
    info = routes.clusters()
    assert info.cluster_addr_table == {"C": ["a"], "D": ["b"]}
    assert info.broker_addr_table["a"].broker_addrs == {0: "a:10911", 1: "a-1:10911"}
    assert routes.topics("D") == ["U"]
    assert routes.topics("E") == []


class TestStateVersions:
    """Two masters of one name, of which one has replaced the other."""

    OLD = Registration("C", "a", "old:1")
    NEW = Registration("C", "a", "new:1")

    @staticmethod
    def table(state_version: int | None) -> TopicConfigTable:
        topics = {"T": TopicConfig("T", 4, 4)}
        return TopicConfigTable(topics, DataVersion(1, 1000, state_version))

    @pytest.mark.parametrize("old", [None, 1])
    def test_the_newer_master_is_in_the_routes_whoever_registers_last(
        self, old: int | None
    ) -> None:
        routes = Routes()
        routes.register(self.OLD, self.table(old), 0.0)
        assert routes.register(self.NEW, self.table(2), 1.0) is None
        assert routes.register(self.OLD, self.table(old), 2.0) == "new:1"
        assert brokers_of(routes, "T") == {"a": {0: "new:1"}}
        assert routes.is_former(self.OLD, self.table(old))
        assert not routes.is_former(self.NEW, self.table(2))
        routes.unregister("a", 0, "old:1")
        assert brokers_of(routes, "T") == {"a": {0: "new:1"}}

    def test_the_newest_version_is_remembered_when_the_master_leaves(self) -> None:
        routes = Routes()
        routes.register(self.NEW, self.table(2), 0.0)
        routes.unregister("a", 0, "new:1")
        assert routes.state_version("a") == 2
        routes.register(self.OLD, self.table(1), 1.0)
        assert routes.is_former(self.OLD, self.table(1))
        routes.register(self.OLD, self.table(3), 2.0)
        assert not routes.is_former(self.OLD, self.table(3))
        assert routes.state_version("b") == 0

    def test_the_number_of_remembered_names_is_limited(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("firetrail.namesrv.routes.NAMES_MAX", 2)
        routes = Routes()
        for name in "abc":
            routes.register(Registration("C", name, "x:1"), self.table(7), 0.0)
        assert [routes.state_version(name) for name in "abc"] == [0, 7, 7]

    def test_the_version_of_a_follower_does_not_count(self) -> None:
        routes = Routes()
        routes.register(follower("a"), self.table(9), 0.0)
        assert routes.state_version("a") == 0


class TestRivals:
    """Two brokers with one name and one id."""

    FIRST = Registration("C", "a", "first:1")
    LAST = Registration("C", "a", "last:1")

    def test_each_rival_is_reported_and_the_last_is_in_the_routes(self) -> None:
        routes = Routes()
        assert routes.register(self.FIRST, table("T"), 0.0) is None
        assert routes.register(self.LAST, table("T"), 1.0) == "first:1"
        for now in (30.0, 60.0):  # the route does not alternate
            assert routes.register(self.FIRST, table("T"), now) == "last:1"
            assert routes.register(self.LAST, table("T"), now) == "first:1"
            assert brokers_of(routes, "T") == {"a": {0: "last:1"}}

    @pytest.mark.parametrize("leaves", ["first:1", "last:1"])
    def test_a_rival_takes_over_when_the_other_leaves(self, leaves: str) -> None:
        routes = Routes()
        routes.register(self.FIRST, table("T"), 0.0)
        routes.register(self.LAST, table("T"), 0.0)
        routes.unregister("a", 0, leaves)
        (stays,) = {"first:1", "last:1"} - {leaves}
        assert brokers_of(routes, "T") == {"a": {0: stays}}
        who = Registration("C", "a", stays)
        assert routes.register(who, table("T", "U", version=2), 1.0) is None
        assert brokers_of(routes, "U") == {"a": {0: stays}}
        routes.unregister("a", 0, stays)
        assert routes.route("T") is None

    def test_a_silent_rival_expires(self) -> None:
        routes = Routes()
        routes.register(self.FIRST, table("T"), 0.0)
        routes.register(self.LAST, table("T"), 1.0)
        assert routes.expire(EXPIRY_S + 0.5) == ["first:1"]
        assert routes.register(self.LAST, table("T"), EXPIRY_S) is None
        assert brokers_of(routes, "T") == {"a": {0: "last:1"}}

    def test_a_heartbeat_counts_for_rivals_too(self) -> None:
        routes = Routes()
        routes.register(self.FIRST, table("T"), 0.0)
        routes.register(self.LAST, table("T"), 0.0)
        for who in (self.FIRST, self.LAST):
            routes.heard_of(who.address, 100.0)
        assert routes.expire(EXPIRY_S + 50) == []


class TestRegistration:
    def test_followers_register_no_topics(self) -> None:
        routes = Routes()
        routes.register(follower(), table("T"), 0.0)
        assert routes.route("T") is None
        assert routes.master_of("a") is None
        routes.register(master(), table("T"), 0.0)
        assert brokers_of(routes, "T") == {"a": {0: "a:10911", 1: "a-1:10911"}}
        assert routes.master_of("a") == ("a:10911", "a:10912")

    def test_a_follower_becomes_the_master(self) -> None:
        routes = Routes()
        routes.register(follower(), table("T"), 0.0)
        routes.register(Registration("C", "a", "a-1:10911"), table("T"), 0.0)
        assert brokers_of(routes, "T") == {"a": {0: "a-1:10911"}}

    def test_an_equal_version_changes_nothing(self) -> None:
        routes = Routes()
        routes.register(master(), table("T"), 0.0)
        assert not routes.is_changed("a:10911", DataVersion(1, 1000))
        routes.register(master(), table("T", "U", version=1), 1.0)
        assert routes.topics() == ["T"]
        assert routes.is_changed("a:10911", DataVersion(2, 1000))
        routes.register(master(), table("U", version=2), 1.0)
        assert routes.topics() == ["T", "U"], "registrations may name only what has changed"

    def test_a_complete_registration_removes_topics(self) -> None:
        routes = Routes()
        routes.register(master("b"), table("T"), 0.0)
        routes.register(master(), table("T", "U"), 0.0)
        routes.register(master(), table("U", version=2), 0.0, complete=True)
        assert brokers_of(routes, "T") == {"b": {0: "b:10911"}}

    def test_a_topic_can_be_added_between_registrations(self) -> None:
        routes = Routes()
        routes.register(master(), table(), 0.0)
        routes.add_topic("T", [QueueData("a", 1, 1, 6), QueueData("stranger", 1, 1, 6)])
        assert list(brokers_of(routes, "T")) == ["a"]


class TestLeaving:
    def test_queues_are_removed_with_the_last_broker_of_the_name(self) -> None:
        routes = Routes()
        routes.register(master(), table("T"), 0.0)
        routes.register(follower(), table("T"), 0.0)
        routes.unregister("a", 0, "a:10911")
        assert brokers_of(routes, "T") == {"a": {1: "a-1:10911"}}
        routes.unregister("a", 1, "a-1:10911")
        assert routes.topics() == []
        assert routes.clusters().cluster_addr_table == {}

    def test_only_the_broker_itself_can_unregister(self) -> None:
        routes = Routes()
        routes.register(master(), table("T"), 0.0)
        routes.unregister("a", 0, "impostor:10911")
        routes.unregister("a", 1, "a:10911")
        routes.unregister("b", 0, "b:10911")
        assert routes.route("T") is not None

    def test_silent_brokers_expire(self) -> None:
        routes = Routes()
        routes.register(master("a"), table("T"), 0.0)
        routes.register(master("b"), table("T"), 0.0)
        routes.register(Registration("C", "c", "c:1", expiry_s=None), table("T"), 0.0)
        routes.register(Registration("C", "d", "d:1", expiry_s=5.0), table("T"), 0.0)
        routes.heard_of("b:10911", 1.0)
        assert routes.expire(EXPIRY_S) == ["d:1"]
        assert routes.expire(EXPIRY_S + 0.5) == ["a:10911"]
        assert sorted(brokers_of(routes, "T")) == ["b", "c"]


class TestTopics:
    def test_write_permission_can_be_removed_and_restored(self) -> None:
        routes = Routes()
        routes.register(master("a"), table("T", "U"), 0.0)
        routes.register(master("b"), table("T"), 0.0)
        assert routes.set_writable("a", False) == 2
        route = routes.route("T")
        assert route and [queue.perm for queue in route.queue_datas] == [4, 6]
        assert routes.set_writable("a", True) == 2
        route = routes.route("T")
        assert route and [queue.perm for queue in route.queue_datas] == [6, 6]
        assert routes.set_writable("nobody", False) == 0

    def test_topics_can_be_deleted(self) -> None:
        routes = Routes()
        routes.register(master("a"), table("T", "U"), 0.0)
        routes.register(master("b", "D"), table("T"), 0.0)
        routes.delete_topic("T", "C")
        assert list(brokers_of(routes, "T")) == ["b"]
        routes.delete_topic("T")
        routes.delete_topic("T")
        assert routes.topics() == ["U"]

    def test_topics_are_found_by_system_flags(self) -> None:
        routes = Routes()
        routes.register(master("a"), table("T", topic_sys_flag=1), 0.0)
        routes.register(master("b"), table("U", topic_sys_flag=2), 0.0)
        assert routes.topics_with(lambda flag: flag == 2) == ["U"]
