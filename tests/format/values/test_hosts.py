"""Hosts as bytes and as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrail.errors import FormatError
from firetrail.format.values.hosts import (
    Host,
    decode_host,
    encode_host,
    format_host,
    parse_host,
    unpack_ip,
)

# Born and store hosts of records that the Java store wrote.
GOLDEN = [
    ("0a010203 0000c351", Host("10.1.2.3", 50001), "10.1.2.3:50001"),
    ("c0a80102 00002a9f", Host("192.168.1.2", 10911), "192.168.1.2:10911"),
    (
        "105000000000000000050600300c326b 0000c351",
        Host("1050::5:600:300c:326b", 50001),
        "[1050::5:600:300c:326b]:50001",
    ),
    ("00000000000000000000000000000001 00002a9f", Host("::1", 10911), "[::1]:10911"),
]

addresses = st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16)
hosts = st.builds(lambda ip, port: Host(unpack_ip(ip), port), addresses, st.integers(0, 65535))


@pytest.mark.parametrize(("raw", "host", "text"), GOLDEN)
def test_hosts_of_java_round_trip(raw: str, host: Host, text: str) -> None:
    data = bytes.fromhex(raw)
    assert decode_host(data, 0, len(data) == 20) == host
    assert encode_host(host) == data
    assert format_host(host) == str(host) == text
    assert parse_host(text) == host


@given(hosts, st.binary(max_size=9))
def test_bytes_round_trip(host: Host, before: bytes) -> None:
    data = encode_host(host)
    assert len(data) == (20 if host.is_v6 else 8)
    assert decode_host(memoryview(before + data), len(before), host.is_v6) == host


@given(hosts)
def test_text_round_trip(host: Host) -> None:
    assert parse_host(format_host(host)) == host


def test_mapped_v4_stays_v6() -> None:
    host = parse_host("[::ffff:1.2.3.4]:1")
    assert host == Host("::ffff:1.2.3.4", 1)
    assert len(encode_host(host)) == 20


def test_text_is_brought_to_one_form() -> None:
    assert parse_host("[0:0:0:0:0:0:0:1]:80").ip == "::1"


@pytest.mark.parametrize(
    ("raw", "at", "is_v6", "message"),
    [
        ("0a0102030000", 0, False, "host at offset 0: needs 8 bytes, 6 are left"),
        ("0a0102030000c351", 0, True, "host at offset 0: needs 20 bytes, 8 are left"),
        ("0a0102030000c351", 9, False, "host at offset 9: needs 8 bytes, 0 are left"),
        ("0a0102030000c351", -8, False, "host at offset -8: needs 8 bytes"),
        ("000a0102037fffffff", 1, False, "port at offset 5: 2147483647 is not in 0..65535"),
        ("0a010203ffffffff", 0, False, "port at offset 4: -1 is not in 0..65535"),
    ],
)
def test_malformed_hosts_are_refused(raw: str, at: int, is_v6: bool, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_host(bytes.fromhex(raw), at, is_v6)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "host at offset 0: '' is not ip:port or [ipv6]:port"),
        ("1.2.3.4", "is not ip:port"),
        ("::1:10911", "is not ip:port or [ipv6]:port"),
        ("[1.2.3.4]:1", "is not ip:port or [ipv6]:port"),
        ("1.2.3.4:x", "port at offset 8: 'x' is not a number in 0..65535"),
        ("1.2.3.4:", "port at offset 8: '' is not a number"),
        ("1.2.3.4:65536", "port at offset 8: 65536 is not in 0..65535"),
        ("1.2.3.4:" + "9" * 5000, "is not a number in 0..65535"),
        ("1.2.3:1", "address at offset 0: '1.2.3' is not an IPv4 or IPv6 address"),
        ("localhost:1", "address at offset 0: 'localhost' is not an IPv4 or IPv6 address"),
        ("[fe80::1%eth0]:1", "address at offset 0: 'fe80::1%eth0' is not"),
    ],
)
def test_malformed_addresses_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_host(text)
    assert message in str(caught.value)


def test_bad_host_is_not_encoded() -> None:
    with pytest.raises(FormatError, match="port at offset 4: 70000 is not in"):
        encode_host(Host("1.2.3.4", 70000))
    with pytest.raises(FormatError, match="port at offset 16: -1 is not in"):
        encode_host(Host("::1", -1))
