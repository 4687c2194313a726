"""The signatures of requests, as RocketMQ's ACL defines them.

Remoting: ``Signature = base64(HMAC-SHA1(secret key, values + body))``. The values are those of all
fields of the header except ``Signature``, in the order of their keys, with nothing between them.
The body is signed as it is sent. Some clients sign more or less (:meth:`Verifier.accepts`).

gRPC: the header ``authorization`` carries the HMAC-SHA1 of the header ``x-mq-date-time`` in hex::

    MQv2-HMAC-SHA1 Credential=<access key>, SignedHeaders=x-mq-date-time, Signature=<hex>

A signature covers neither the request code nor the names of the fields, and does not expire. It
proves that the peer knows the secret key; only TLS protects a request against replay.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter

from firetrail.auth.credentials import Credentials

ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"

GRPC_ALGORITHM = "MQv2-HMAC-SHA1"
GRPC_DATE_TIME = "x-mq-date-time"

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""The field of QUERY_MESSAGE that marks its key as a unique key. Clients sign it since 4.9.4."""
_ZONE_FIELDS = frozenset({"__ZONE_NAME", "__ZONE_MODE"})
"""Fields that Java clients add after they have signed, if zones are configured."""
_STALE_ROUNDS = 3
"""How many times a Go client may have signed the same command again, at most. It sends a message at
most three times by default."""
_BLOCK_SIZE = 64
"""The block size of SHA-1. HMAC extends the key to it."""
_ORDERED_MAX = 64
"""Maximum number of fields whose order is cached."""
_ORDER_CHARACTERS = 512
"""Maximum total length of the names of fields whose order is cached."""
_AUTHORIZATION_MAX = 4096
"""Maximum length of a gRPC authorization header; longer ones are not parsed."""

SignedBody = bytes | memoryview | Sequence[bytes | memoryview]
_WHOLE = (bytes, memoryview)
"""The types of a body in one piece."""


class KeyedHash:
    """HMAC-SHA1 with one key. Preparing the key once halves the cost of a signature."""

    __slots__ = ("_new_inner", "_new_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode("utf-8", "replace")
        if len(key) > _BLOCK_SIZE:
            key = sha1(key).digest()
        key = key.ljust(_BLOCK_SIZE, b"\0")
        self._new_inner = sha1(bytes(byte ^ 0x36 for byte in key)).copy
        self._new_outer = sha1(bytes(byte ^ 0x5C for byte in key)).copy

    def digest(self, values: bytes, body: SignedBody = b"") -> bytes:
        """Return the HMAC of the values, followed by the body."""
        inner = self._new_inner()
        inner.update(values)
        if isinstance(body, _WHOLE):
            inner.update(body)
        else:
            for piece in body:
                inner.update(piece)
        outer = self._new_outer()
        outer.update(inner.digest())
        return outer.digest()

    def signature(self, values: bytes, body: SignedBody) -> bytes:
        """Return the HMAC of the values and the body in base64."""
        return b2a_base64(self.digest(values, body), newline=False)


class Signer:
    """Signs the requests of one client."""

    __slots__ = ("_hash", "credentials")

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._hash = KeyedHash(credentials.secret_key)

    def fields(self, fields: Mapping[str, str], body: SignedBody = b"") -> dict[str, str]:
        """Return the fields of a request with the credentials and the signature added.

        A signature of an earlier attempt is replaced. All fields must be present: one that is added
        later makes the signature wrong.
        """
        signed = dict(fields)
        signed.pop(SIGNATURE, None)
        signed[ACCESS_KEY] = self.credentials.access_key
        if self.credentials.security_token is not None:
            signed[SECURITY_TOKEN] = self.credentials.security_token
        signed[SIGNATURE] = self._hash.signature(_values(signed), body).decode()
        return signed

    def grpc_authorization(self, date_time: str) -> str:
        """Return the header ``authorization`` for a call with this ``x-mq-date-time``."""
        digest = self._hash.digest(date_time.encode("utf-8", "replace"))
        return (
            f"{GRPC_ALGORITHM} Credential={self.credentials.access_key}, "
            f"SignedHeaders={GRPC_DATE_TIME}, Signature={digest.hex().upper()}"
        )


class Verifier:
    """Checks the signatures of one user."""

    __slots__ = ("_hash",)

    def __init__(self, secret_key: str) -> None:
        self._hash = KeyedHash(secret_key)

    def accepts(self, fields: Mapping[str, str], body: SignedBody = b"") -> bool:
        """Return whether a request has a valid signature.

        These variants of stock clients are valid, too:

        - clients up to 4.9.3 do not sign ``_UNIQUE_KEY_QUERY``;
        - the Go client does not sign ``SecurityToken``;
        - Java clients add the fields of zones after signing;
        - the Go client signs a retried command with the fields of the previous attempt.
        """
        given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
        if not given:
            return False
        first = self._hash.signature(_values(fields), body)
        if compare_digest(given, first):
            return True
        return any(
            compare_digest(given, signature) for signature in self._variants(fields, first, body)
        )

    def accepts_grpc(self, date_time: str, signature: bytes) -> bool:
        """Return whether the signature of a gRPC call is valid for its ``x-mq-date-time``."""
        expected = self._hash.digest(date_time.encode("utf-8", "replace"))
        return compare_digest(signature, expected)

    def _variants(
        self, fields: Mapping[str, str], first: bytes, body: SignedBody
    ) -> Iterator[bytes]:
        if UNIQUE_KEY_QUERY in fields:
            yield self._hash.signature(_values(fields, {UNIQUE_KEY_QUERY}), body)
        if not _ZONE_FIELDS.isdisjoint(fields):
            yield self._hash.signature(_values(fields, _ZONE_FIELDS), body)
        if SECURITY_TOKEN in fields:
            first = self._hash.signature(_values(fields, {SECURITY_TOKEN}), body)
            yield first
        previous = first
        for _ in range(_STALE_ROUNDS):
            stale = _stale_values(fields, previous.decode())
            previous = self._hash.signature(stale, body)
            yield previous


@dataclass(frozen=True, slots=True)
class GrpcAuthorization:
    """The parsed header ``authorization`` of a gRPC call."""

    access_key: str
    signature: bytes


def parse_grpc_authorization(text: str) -> GrpcAuthorization | None:
    """Parse the header ``authorization`` of a gRPC call; return None if it is not valid.

    ``Credential`` may name a region and a service after the access key. ``SignedHeaders`` is not
    looked at, because only ``x-mq-date-time`` is ever signed.
    """
    algorithm, _, rest = text[:_AUTHORIZATION_MAX].partition(" ")
    if algorithm != GRPC_ALGORITHM:
        return None
    members = dict(_members(rest.split(",")))
    access_key = members.get("Credential", "").partition("/")[0]
    try:
        signature = bytes.fromhex(members.get("Signature", ""))
    except ValueError:
        return None
    return GrpcAuthorization(access_key, signature) if access_key and signature else None


def _members(parts: Iterable[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        name, _, value = part.strip().partition("=")
        yield name, value


def _values(fields: Mapping[str, str], omitted: Iterable[str] = ()) -> bytes:
    """Return the values of the fields in the order of their keys, without a signature."""
    if not omitted and (order := _orders.get(len(fields) - (SIGNATURE in fields))) is not None:
        try:
            return "".join(order(fields)).encode("utf-8", "replace")
        except KeyError:  # as many fields, with other names
            pass
    names = [name for name in sorted(fields) if name != SIGNATURE and name not in omitted]
    if 2 <= len(names) <= _ORDERED_MAX and sum(map(len, names)) <= _ORDER_CHARACTERS:
        _orders[len(names)] = itemgetter(*names)
    return "".join([fields[name] for name in names]).encode("utf-8", "replace")


_orders: dict[int, Callable[[Mapping[str, str]], tuple[str, ...]]] = {}
"""Functions that return the signed values of fields in the order of their keys, by the number of
signed fields. If all names of a function are present, they are all signed fields, because the
numbers are equal."""


def _stale_values(fields: Mapping[str, str], previous: str) -> bytes:
    """Return the text that Go clients sign in a retry: the access key twice, the last signature."""
    values = {**fields, SIGNATURE: previous, ACCESS_KEY: fields.get(ACCESS_KEY, "") * 2}
    return "".join([values[name] for name in sorted(values)]).encode("utf-8", "replace")
