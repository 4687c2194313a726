"""Elections on etcd 3.

A group has these keys under its prefix. ``leader`` is bound to the lease of its holder; its create
revision is the epoch. ``in-sync`` is bound to no lease, nor is ``members/NUMBER``, the identity of
a member. The values are JSON. All decisions are transactions, so it does not matter if one is sent
twice.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any

from firetrail.errors import ElectionError, NotReachedError
from firetrail.replication.election import Candidate, GroupView, Holder, InSyncSet, SetChange
from firetrail.replication.etcd_gateway import NOT_FOUND, EtcdAccess, EtcdGateway, EtcdRefusal, Json
from firetrail.system import Clock

NO_LEASE = 0


class EtcdCoordinator:
    """The entries of one group in etcd; see :class:`Coordinator` for the calls."""

    def __init__(self, access: EtcdAccess, prefix: str, ttl_s: int, clock: Clock) -> None:
        """Prepare; nothing is sent.

        Args:
            access: How etcd is reached.
            prefix: The beginning of the group's keys, such as ``/firetrail/cluster/group``.
            ttl_s: How long a lease lasts.
            clock: The time.

        Raises:
            ConfigError: An endpoint is not an address, or a certificate cannot be read.
        """
        self._gateway = EtcdGateway(access, clock)
        self._prefix = f"{prefix}/"
        self._leader = f"{prefix}/leader"
        self._in_sync = f"{prefix}/in-sync"
        self._ttl_s = ttl_s
        self._lease = NO_LEASE

    def claim(self, member: int, identity: str) -> str:
        """Bind a number to an identity; see :class:`Coordinator`."""
        key = self._member_key(member)
        read = {"request_range": {"key": _text64(key)}}
        request = {
            "compare": [_compare(key, "CREATE", "create_revision", 0)],
            "success": [_put(key, {"identity": identity}), read],
            "failure": [read],
        }
        answer = self._gateway.call("kv/txn", request)
        found = answer["responses"][-1]["response_range"]["kvs"][0]
        try:
            return str(_value(found)["identity"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign(error) from error

    def _member_key(self, member: int) -> str:
        return f"{self._prefix}members/{member}"

    def campaign(self, candidate: Candidate, expected: InSyncSet | None) -> GroupView:
        """Try to win; see :class:`Coordinator`."""
        granted = self._gateway.call("lease/grant", {"TTL": str(self._ttl_s)})
        self._lease = int(granted["ID"])
        if int(granted["TTL"]) < self._ttl_s:
            raise ElectionError(
                f"etcd grants leases of {granted['TTL']} seconds, not {self._ttl_s}; the master "
                "would acknowledge messages for too long"
            )
        entry = {
            "member": candidate.member,
            "address": candidate.address,
            "haAddress": candidate.ha_address,
            "token": candidate.token,
        }
        puts = [_put(self._leader, entry, self._lease)]
        if expected is None:
            puts.append(_put(self._in_sync, {"members": [candidate.member], "offset": 0}))
        compare = [
            _compare(self._leader, "CREATE", "create_revision", 0),
            _compare(self._in_sync, "MOD", "mod_revision", expected.revision if expected else 0),
        ]
        try:
            view = self._change(compare, puts)
        except EtcdRefusal as error:
            if error.code != NOT_FOUND:
                raise
            return self._read()  # the request took so long that the lease has expired
        if view.holder is None or view.holder.token != candidate.token:
            with suppress(NotReachedError):  # it expires by itself
                self.resign()
        return view

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

    def change_in_sync(self, change: SetChange) -> GroupView:
        """Replace the in-sync set; see :class:`Coordinator`."""
        content = {"members": sorted(change.members), "offset": change.offset}
        compare = [
            _compare(self._leader, "CREATE", "create_revision", change.epoch),
            _compare(self._in_sync, "MOD", "mod_revision", change.before),
        ]
        return self._change(compare, [_put(self._in_sync, content)])

    def close(self) -> None:
        """End all watches; see :class:`Coordinator`."""
        self._gateway.close()

    def _change(self, compare: list[Json], puts: list[Json]) -> GroupView:
        """Execute puts if all comparisons hold; return the group afterwards in either case."""
        read = {"request_range": self._range()}
        request = {"compare": compare, "success": [*puts, read], "failure": [read]}
        answer = self._gateway.call("kv/txn", request)
        found = answer["responses"][-1]["response_range"]
        return self._view(int(answer["header"]["revision"]), found.get("kvs", []))

    def _read(self) -> GroupView:
        answer = self._gateway.call("kv/range", self._range())
        return self._view(int(answer["header"]["revision"]), answer.get("kvs", []))

    def _range(self) -> Json:
        """Return the fields that select all keys of the group."""
        after = self._prefix[:-1] + chr(ord(self._prefix[-1]) + 1)
        return {"key": _text64(self._prefix), "range_end": _text64(after)}

    def _view(self, revision: int, entries: list[Json]) -> GroupView:
        by_key = {b64decode(entry["key"]).decode(): entry for entry in entries}
        leader, in_sync = by_key.get(self._leader), by_key.get(self._in_sync)
        try:
            return GroupView(
                revision,
                _holder(leader) if leader is not None else None,
                _members(in_sync) if in_sync is not None else None,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise self._foreign(error) from error

    def _foreign(self, error: Exception) -> ElectionError:
        return ElectionError(
            f"etcd has an entry under {self._prefix} that no member of the group wrote: {error!r}; "
            "delete it, or choose another etcd_prefix"
        )


def _holder(entry: Json) -> Holder:
    value = _value(entry)
    return Holder(
        int(value["member"]),
        str(value["address"]),
        str(value["haAddress"]),
        str(value["token"]),
        int(entry["create_revision"]),
    )


def _members(entry: Json) -> InSyncSet:
    value = _value(entry)
    members = frozenset(int(member) for member in value["members"])
    return InSyncSet(members, int(value["offset"]), int(entry["mod_revision"]))


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
