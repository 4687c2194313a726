"""Signatures of requests: the published vector, and the variants of stock clients."""

import hmac
from base64 import b64encode
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.auth import signature
from firetrail.auth.credentials import Credentials
from firetrail.auth.signature import (
    GrpcAuthorization,
    KeyedHash,
    Signer,
    Verifier,
    parse_grpc_authorization,
)

KEY = "secret-of-alice"
ALICE = Signer(Credentials("alice", KEY))
VERIFIER = Verifier(KEY)


def sign(content: str, body: bytes = b"") -> str:
    """Sign by the plain definition of HMAC-SHA1."""
    return b64encode(hmac.digest(KEY.encode(), content.encode() + body, "sha1")).decode()


def test_the_published_vector() -> None:
    """The vector of the test of the Go client."""
    keyed = KeyedHash("adiaushdiaushd")
    content = b"Hello RocketMQ Client ACL Feature"
    assert keyed.signature(content, b"") == b"tAb/54Rwwcq+pbH8Loi7FWX4QSQ="


@given(key=st.text(min_size=1, max_size=200), pieces=st.lists(st.binary(max_size=100), max_size=4))
def test_the_keyed_hash_is_hmac(key: str, pieces: list[bytes]) -> None:
    expected = hmac.digest(key.encode("utf-8", "replace"), b"values" + b"".join(pieces), "sha1")
    assert KeyedHash(key).digest(b"values", pieces) == expected
    assert KeyedHash(key).digest(b"values", b"".join(pieces)) == expected


def test_values_are_signed_in_the_order_of_their_keys_and_before_the_body() -> None:
    fields = ALICE.fields({"topic": "T", "a": "1", "Z": "ü", "queueId": "0"}, b"body")
    assert fields["AccessKey"] == "alice"
    # AccessKey, Z, a, queueId, topic: upper case comes before lower case
    assert fields["Signature"] == sign("aliceü10T", b"body")
    assert VERIFIER.accepts(fields, b"body")


def test_the_body_may_have_several_pieces() -> None:
    fields = ALICE.fields({"topic": "T"}, [b"bo", memoryview(b"dy")])
    assert fields == ALICE.fields({"topic": "T"}, b"body")
    assert VERIFIER.accepts(fields, memoryview(b"body"))


def test_signing_again_replaces_the_signature() -> None:
    once = ALICE.fields({"topic": "T"}, b"body")
    assert ALICE.fields(once, b"body") == once


def test_a_security_token_is_sent_and_signed() -> None:
    fields = Signer(Credentials("alice", KEY, "tok")).fields({"topic": "T"})
    assert fields["SecurityToken"] == "tok"
    assert fields["Signature"] == sign("alicetokT")
    assert VERIFIER.accepts(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "T"},
        {"AccessKey": "alice", "Signature": ""},
        {"AccessKey": "alice", "Signature": "not base64 \ud800"},
        {"AccessKey": "alice", "topic": "T", "Signature": sign("aliceT") + "="},
    ],
)
def test_a_missing_or_invalid_signature_is_refused(fields: dict[str, str]) -> None:
    assert not VERIFIER.accepts(fields)


def test_a_signature_of_other_fields_another_body_or_another_key_is_refused() -> None:
    fields = ALICE.fields({"topic": "T"}, b"body")
    assert not VERIFIER.accepts({**fields, "topic": "U"}, b"body")
    assert not VERIFIER.accepts(fields, b"bodY")
    assert not VERIFIER.accepts({**fields, "more": "x"}, b"body")
    assert not Verifier("another key").accepts(fields, b"body")


def test_old_clients_do_not_sign_the_mark_of_unique_keys() -> None:
    fields = {"AccessKey": "alice", "key": "k", "_UNIQUE_KEY_QUERY": "true"}
    assert VERIFIER.accepts({**fields, "Signature": sign("alicek")})  # up to 4.9.3
    assert VERIFIER.accepts({**fields, "Signature": sign("alicetruek")})  # `_` is before letters


def test_the_go_client_signs_the_fields_of_the_previous_attempt_in_a_retry() -> None:
    # A retried command already has AccessKey and Signature; the client adds AccessKey once more.
    first = sign("aliceT", b"body")
    second = sign(f"alicealice{first}T", b"body")
    third = sign(f"alicealice{second}T", b"body")
    for each in (first, second, third):
        fields = {"AccessKey": "alice", "topic": "T", "Signature": each}
        assert VERIFIER.accepts(fields, b"body")
    with_token = sign(f"alicealicetok{sign('aliceT')}T")  # SecurityToken is before Signature
    fields = {"AccessKey": "alice", "SecurityToken": "tok", "topic": "T", "Signature": with_token}
    assert VERIFIER.accepts(fields)


def test_the_channel_of_cpp_clients_is_signed() -> None:
    fields = {"AccessKey": "alice", "OnsChannel": "ALIYUN", "topic": "T"}
    assert VERIFIER.accepts({**fields, "Signature": sign("aliceALIYUNT")})
    assert not VERIFIER.accepts({**fields, "Signature": sign("aliceT")})


@pytest.mark.parametrize(
    ("fields", "signed"),
    [
        pytest.param({"SecurityToken": "tok", "topic": "T"}, "T", id="the Go client: no token"),
        pytest.param(
            {"topic": "T", "__ZONE_NAME": "z", "__ZONE_MODE": "true"}, "T", id="Java: no zone"
        ),
        pytest.param({"flag": "true", "queueId": "5"}, "true5", id="the text of JSON values"),
    ],
)
def test_clients_sign_some_fields_as_text(fields: dict[str, str], signed: str) -> None:
    signature = sign(f"alice{signed}")
    assert VERIFIER.accepts({"AccessKey": "alice", **fields, "Signature": signature})


def test_a_large_body_is_signed() -> None:
    body = bytes(4 << 20)
    assert VERIFIER.accepts(ALICE.fields({"topic": "T"}, body), body)


class TestGrpc:
    DATE = "20261116T231828Z"

    def test_a_call_is_signed_over_its_date(self) -> None:
        header = ALICE.grpc_authorization(self.DATE)
        digest = hmac.digest(KEY.encode(), self.DATE.encode(), "sha1")
        assert header == (
            "MQv2-HMAC-SHA1 Credential=alice, SignedHeaders=x-mq-date-time, "
            f"Signature={digest.hex().upper()}"
        )
        parsed = parse_grpc_authorization(header)
        assert parsed == GrpcAuthorization("alice", digest)
        assert VERIFIER.accepts_grpc(self.DATE, parsed.signature)
        assert not VERIFIER.accepts_grpc("20261116T231829Z", parsed.signature)

    def test_region_and_service_are_not_part_of_the_access_key(self) -> None:
        parsed = parse_grpc_authorization(
            "MQv2-HMAC-SHA1 Credential=alice/cn-hangzhou/RocketMQ,SignedHeaders=x,Signature=0aFF"
        )
        assert parsed == GrpcAuthorization("alice", b"\x0a\xff")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Basic abc",
            "MQv2-HMAC-SHA1",
            "MQv2-HMAC-SHA1 Credential=alice, Signature=",
            "MQv2-HMAC-SHA1 Credential=, Signature=00",
            "MQv2-HMAC-SHA1 Credential=alice, Signature=xyz",
            "MQv2-HMAC-SHA1 Signature=00",
        ],
    )
    def test_an_invalid_header_is_refused(self, text: str) -> None:
        assert parse_grpc_authorization(text) is None


def test_fields_in_any_order_have_the_same_signature() -> None:
    """The order in which fields arrive is kept, and not taken for the order of the signature."""
    fields = {"b": "2", "a": "1", "AccessKey": "alice", "z": "3"}
    expected = sign("alice123", b"body")
    for names in permutations(fields):
        for _ in range(2):
            signed = ALICE.fields({name: fields[name] for name in names}, b"body")
            assert signed["Signature"] == expected
            assert VERIFIER.accepts(dict(reversed(signed.items())), b"body")
            assert not VERIFIER.accepts({**signed, "a": "4"}, b"body")


def test_few_orders_of_fields_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[int, object] = {}
    monkeypatch.setattr(signature, "_orders", kept)
    forged = {"AccessKey": "alice", "Signature": "forged"}
    assert not VERIFIER.accepts({**forged, "x" * 600: "1"})
    assert not VERIFIER.accepts({**forged, **{f"x{n}": "1" for n in range(64)}})
    assert not kept
    for number in range(100):
        assert not VERIFIER.accepts({**forged, f"x{number}": "1"})
    assert list(kept) == [2]


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "Signature", "x", "y"]), st.text("12"))))
def test_an_order_is_only_used_for_fields_with_the_same_names(
    requests: list[dict[str, str]],
) -> None:
    for request in requests:
        fields = {**request, "AccessKey": "alice"}
        content = "".join(fields[name] for name in sorted(fields) if name != "Signature")
        assert VERIFIER.accepts({**fields, "Signature": sign(content)})
        assert ALICE.fields(fields)["Signature"] == sign(content)
