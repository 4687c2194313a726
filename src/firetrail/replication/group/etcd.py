"""Elections on etcd 3.

A group has these keys under its prefix. ``leader`` is bound to the lease of its holder; its create
revision is the epoch. ``successor`` is bound to a lease of its own. Either of them without a lease
was written by hand, and counts for nothing. ``in-sync`` is bound to no
lease, nor are ``members/NUMBER``, the identity of a member, and ``reports/NUMBER``, what a member
has seen of a group that etcd does not know, and ``confirmed``, an offset that was confirmed some
seconds ago. The values are JSON. All decisions are transactions, so
it does not matter if one is sent twice.

Revisions repeat if etcd is restored from a backup. Therefore a transaction also compares the
content of the in-sync set, which has an id of its own in every version.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

from firetrail.errors import ElectionError, NotReachedError, ProtocolError
from firetrail.replication.group.etcd_gateway import (
    NOT_FOUND,
    EtcdAccess,
    EtcdGateway,
    EtcdRefusal,
    Json,
)
from firetrail.replication.group.group_memory import GroupMemory
from firetrail.replication.group.group_view import (
    Candidate,
    ConfirmedNote,
    GroupView,
    InSyncSet,
    LeaseHolder,
    MemberReport,
    SetChange,
)
from firetrail.replication.group.lineage import Lineage
from firetrail.system import Clock

NO_LEASE = 0

_T = TypeVar("_T")


class EtcdCoordinator:
    """The entries of one group in etcd; see :class:`Coordinator` for the calls."""

    def __init__(self, access: EtcdAccess, prefix: str, ttl_s: int, clock: Clock) -> None:
        """Prepare; nothing is sent.

        Args:
            access: How etcd is reached.
            prefix: The beginning of the group's keys, such as ``/firetrail/cluster/group``.
            ttl_s: The time for which a lease lasts.
            clock: The time.

        Raises:
            ConfigError: An endpoint is not an address, or a certificate cannot be read.
        """
        self._gateway = EtcdGateway(access, clock)
        self._prefix = f"{prefix}/"
        self._leader = f"{prefix}/leader"
        self._in_sync = f"{prefix}/in-sync"
        self._successor = f"{prefix}/successor"
        self._members = f"{prefix}/members/"
        self._addresses = f"{prefix}/addresses/"
        self._reports = f"{prefix}/reports/"
        self._confirmed = f"{prefix}/confirmed"
        self._ttl_s = ttl_s
        self._lease = NO_LEASE

    def claim(self, member: int, identity: str) -> str:
        """Bind a number to an identity; see :class:`Coordinator`."""
        key = f"{self._members}{member}"
        read = {"request_range": {"key": _text64(key)}}
        request = {
            "compare": [_compare(key, "CREATE", "create_revision", 0)],
            "success": [_put(key, {"identity": identity}), read],
            "failure": [read],
        }
        answer = self._gateway.call("kv/txn", request)
        found = answer["responses"][-1]["response_range"]["kvs"][0]
        try:
            return _identity(found)
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign(error) from error

    def announce(self, member: int, address: str) -> None:
        """Tell the address of a member; see :class:`Coordinator`."""
        entry = {"address": address}
        self._gateway.call("kv/txn", {"success": [_put(f"{self._addresses}{member}", entry)]})

    def campaign(
        self, candidate: Candidate, expected: InSyncSet | None, proposed: InSyncSet
    ) -> GroupView:
        """Try to win; see :class:`Coordinator`."""
        self._lease = self._granted()
        entry = {
            "member": candidate.member,
            "address": candidate.address,
            "haAddress": candidate.ha_address,
            "token": candidate.token,
        }
        puts = [_put(self._leader, entry, self._lease), self._put_set(proposed)]
        try:
            view = self._change([self._is_free, *self._is_set(expected)], puts)
        except EtcdRefusal as error:
            if error.code != NOT_FOUND:
                raise
            return self._read()  # the request took so long that the lease has expired
        if view.holder is None or view.holder.token != candidate.token:
            with suppress(NotReachedError):  # it expires by itself
                self.resign()
        return view

    def _granted(self) -> int:
        granted = self._gateway.call("lease/grant", {"TTL": str(self._ttl_s)})
        if int(granted["TTL"]) < self._ttl_s:
            raise ElectionError(
                f"etcd grants leases of {granted['TTL']} seconds, not {self._ttl_s}; the master "
                "would acknowledge messages for too long"
            )
        return int(granted["ID"])

    def renew(self) -> bool:
        """Renew the lease; see :class:`Coordinator`."""
        answer = self._gateway.call("lease/keepalive", {"ID": str(self._lease)})
        return int(answer.get("TTL", 0)) > 0

    def resign(self) -> None:
        """End the lease; see :class:`Coordinator`."""
        lease, self._lease = self._lease, NO_LEASE
        if lease == NO_LEASE:
            return
        try:
            self._gateway.call("lease/revoke", {"ID": str(lease)})
        except EtcdRefusal as error:
            if error.code != NOT_FOUND:  # it has expired
                raise

    def watch(self, revision: int, timeout_s: float) -> GroupView:
        """Wait for a change; see :class:`Coordinator`."""
        if timeout_s > 0:
            keys = self._range()
            self._gateway.wait_for_event({**keys, "start_revision": str(revision + 1)}, timeout_s)
        return self._read()

    def name_successor(self, epoch: int, member: int, *, leave: bool) -> GroupView:
        """Name the member that is to take over; see :class:`Coordinator`."""
        named = _put(self._successor, {"member": member}, self._granted())
        leaving: list[Json] = [{"request_delete_range": {"key": _text64(self._leader)}}]
        compare = [_compare(self._leader, "CREATE", "create_revision", epoch)]
        view = self._change(compare, [named, *(leaving if leave else [])])
        if leave:
            with suppress(NotReachedError):  # it expires by itself
                self.resign()
        return view

    def change_in_sync(self, change: SetChange) -> GroupView:
        """Replace the in-sync set; see :class:`Coordinator`."""
        is_held = _compare(self._leader, "CREATE", "create_revision", change.epoch)
        return self._change([is_held, *self._is_set(change.before)], [self._put_set(change.after)])

    def note_confirmed(self, epoch: int, note: ConfirmedNote) -> GroupView:
        """Write down what is confirmed; see :class:`Coordinator`."""
        is_held = _compare(self._leader, "CREATE", "create_revision", epoch)
        return self._change([is_held], [_put(self._confirmed, asdict(note))])

    def report(self, member: int, report: MemberReport | None) -> None:
        """Tell what a member has seen; see :class:`Coordinator`."""
        key = f"{self._reports}{member}"
        if report is None:
            self._gateway.call("kv/deleterange", {"key": _text64(key)})
            return
        content = asdict(report) | {"memory": report.memory.to_json()}
        self._gateway.call("kv/txn", {"success": [_put(key, content)]})

    def recover(self, expected: InSyncSet | None, decided: InSyncSet) -> GroupView:
        """Replace the in-sync set; see :class:`Coordinator`."""
        # What was written by hand need not have the form that members write.
        revision = expected.revision if expected is not None else 0
        is_same = _compare(self._in_sync, "MOD", "mod_revision", revision)
        done = [self._put_set(decided), {"request_delete_range": _all_under(self._reports)}]
        return self._change([self._is_free, is_same], done)

    def remove_unleased(self, created: int) -> GroupView:
        """Delete the entry of a holder that no member wrote; see :class:`Coordinator`."""
        compare = [
            _compare(self._leader, "CREATE", "create_revision", created),
            _compare(self._leader, "LEASE", "lease", NO_LEASE),
        ]
        return self._change(compare, [{"request_delete_range": {"key": _text64(self._leader)}}])

    def release(self, member: int, in_sync: InSyncSet) -> bool:
        """Forget the identity of a member, so that another store can have its number.

        Only a member that is not in the in-sync set may be forgotten: its successor has no
        messages, and must not be elected.

        Args:
            member: The number.
            in_sync: The in-sync set as it was last seen; the member is not in it.

        Returns:
            Whether the number is free now; False if the set is another one by now.
        """
        forget = [
            {"request_delete_range": {"key": _text64(f"{prefix}{member}")}}
            for prefix in (self._members, self._addresses, self._reports)
        ]
        return member not in self._change(self._is_set(in_sync), forget).identities

    def close(self) -> None:
        """End all watches; see :class:`Coordinator`."""
        self._gateway.close()

    @property
    def _is_free(self) -> Json:
        """The condition that no member holds the lease."""
        return _compare(self._leader, "CREATE", "create_revision", 0)

    def _is_set(self, expected: InSyncSet | None) -> list[Json]:
        """Return the conditions that the in-sync set is as expected."""
        if expected is None:
            return [_compare(self._in_sync, "MOD", "mod_revision", 0)]
        content = _text64(_encoded_set(expected))
        return [
            _compare(self._in_sync, "MOD", "mod_revision", expected.revision),
            {"key": _text64(self._in_sync), "target": "VALUE", "result": "EQUAL", "value": content},
        ]

    def _put_set(self, in_sync: InSyncSet) -> Json:
        content = {"key": _text64(self._in_sync), "value": _text64(_encoded_set(in_sync))}
        return {"request_put": content}

    def _change(self, compare: list[Json], writes: list[Json]) -> GroupView:
        """Execute writes if all comparisons hold; return the group afterwards in either case."""
        read = {"request_range": self._range()}
        request = {"compare": compare, "success": [*writes, read], "failure": [read]}
        answer = self._gateway.call("kv/txn", request)
        found = answer["responses"][-1]["response_range"]
        return self._view(int(answer["header"]["revision"]), found.get("kvs", []))

    def _read(self) -> GroupView:
        answer = self._gateway.call("kv/range", self._range())
        return self._view(int(answer["header"]["revision"]), answer.get("kvs", []))

    def _range(self) -> Json:
        """Return the fields that select all keys of the group."""
        return _all_under(self._prefix)

    def _view(self, revision: int, entries: list[Json]) -> GroupView:
        try:
            by_key = {b64decode(entry["key"]).decode(): entry for entry in entries}
            leader, in_sync = by_key.get(self._leader), by_key.get(self._in_sync)
            successor, confirmed = by_key.get(self._successor), by_key.get(self._confirmed)
            is_leased = leader is not None and _is_leased(leader)
            return GroupView(
                revision=revision,
                holder=_holder(leader) if leader is not None and is_leased else None,
                in_sync=_decoded_set(in_sync) if in_sync is not None else None,
                identities=_numbered(by_key, self._members, _identity),
                reports=_numbered(by_key, self._reports, _report),
                successor=_successor(successor) if successor is not None else 0,
                addresses=_numbered(by_key, self._addresses, _address),
                unleased=int(leader["create_revision"])
                if leader is not None and not is_leased
                else 0,
                confirmed=_confirmed(confirmed) if confirmed is not None else None,
            )
        except (ValueError, KeyError, TypeError, ProtocolError) as error:
            raise self._foreign(error) from error

    def _foreign(self, error: Exception) -> ElectionError:
        return ElectionError(
            f"etcd has an entry under {self._prefix} that no member of the group wrote: {error!r}; "
            "delete it, or choose another etcd_prefix"
        )


def _all_under(prefix: str) -> Json:
    """Return the fields that select all keys with a prefix."""
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return {"key": _text64(prefix), "range_end": _text64(after)}


def _is_leased(entry: Json) -> bool:
    """Return whether an entry vanishes with a lease, as those of holders and successors do."""
    return int(entry.get("lease", NO_LEASE)) != NO_LEASE


def _successor(entry: Json) -> int:
    return int(_value(entry)["member"]) if _is_leased(entry) else 0


def _confirmed(entry: Json) -> ConfirmedNote:
    value = _value(entry)
    return ConfirmedNote(str(value["group"]), int(value["version"]), int(value["offset"]))


def _holder(entry: Json) -> LeaseHolder:
    value = _value(entry)
    return LeaseHolder(
        int(value["member"]),
        str(value["address"]),
        str(value["haAddress"]),
        str(value["token"]),
        int(entry["create_revision"]),
    )


def _encoded_set(in_sync: InSyncSet) -> str:
    """Return the value of an in-sync set; the same text for the same set."""
    lineage = in_sync.lineage
    value: Json = {"members": sorted(in_sync.members), "offset": in_sync.offset}
    if lineage.group:
        value |= {
            "group": lineage.group,
            "version": lineage.version,
            "epoch": lineage.epoch,
            "decided": lineage.decided,
            "history": list(lineage.history),
        }
    if lineage.overruled or lineage.asked:
        value |= {"overruled": list(lineage.overruled), "asked": list(lineage.asked)}
    return json.dumps(value)


def _decoded_set(entry: Json) -> InSyncSet:
    value = _value(entry)
    members = frozenset(int(member) for member in value["members"])
    lineage = Lineage()
    if "group" in value:
        lineage = Lineage(
            group=str(value["group"]),
            version=int(value["version"]),
            epoch=int(value["epoch"]),
            history=tuple(map(str, value["history"])),
            decided=int(value["decided"]),
            overruled=tuple(map(str, value.get("overruled", ()))),
            asked=tuple(map(int, value.get("asked", ()))),
        )
    return InSyncSet(members, int(value["offset"]), int(entry["mod_revision"]), lineage)


def _identity(entry: Json) -> str:
    return str(_value(entry)["identity"])


def _address(entry: Json) -> str:
    return str(_value(entry)["address"])


def _report(entry: Json) -> MemberReport:
    value = _value(entry)
    ends = int(value["end"]), int(value.get("confirmed", 0))
    return MemberReport(GroupMemory.from_json(value["memory"]), *ends)


def _numbered(
    by_key: Mapping[str, Json], prefix: str, decode: Callable[[Json], _T]
) -> dict[int, _T]:
    return {
        int(key.removeprefix(prefix)): decode(entry)
        for key, entry in by_key.items()
        if key.startswith(prefix)
    }


def _value(entry: Json) -> Any:
    return json.loads(b64decode(entry.get("value", "")))


def _compare(key: str, target: str, field: str, revision: int) -> Json:
    return {"key": _text64(key), "target": target, "result": "EQUAL", field: str(revision)}


def _put(key: str, value: Json, lease: int = NO_LEASE) -> Json:
    content = {"key": _text64(key), "value": _text64(json.dumps(value))}
    if lease != NO_LEASE:
        content["lease"] = str(lease)
    return {"request_put": content}


def _text64(text: str) -> str:
    return b64encode(text.encode()).decode()
