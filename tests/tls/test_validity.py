"""The validity of certificates."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from firetrail.tls.validity import validity_of

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(until: datetime, name: str = "localhost") -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(until - timedelta(days=1))
        .not_valid_after(until)
        .sign(KEY, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


@pytest.mark.parametrize("year", [1951, 1999, 2026, 2049, 2050, 9998])
def test_the_first_certificate_counts(year: int) -> None:
    until = datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC)
    later = certificate(until + timedelta(days=9))
    pem = b"a comment\n" + certificate(until, "a longer name" * 4) + later
    assert validity_of(pem) == (until - timedelta(days=1), until)


@given(st.binary(max_size=200))
def test_what_is_no_certificate_has_no_validity(content: bytes) -> None:
    assert validity_of(content) is None
    begin, end = b"-----BEGIN CERTIFICATE-----\n", b"\n-----END CERTIFICATE-----\n"
    assert validity_of(begin + content + end) is None


@given(st.integers(0, 400))
def test_a_cut_certificate_gives_no_error(size: int) -> None:
    whole = certificate(datetime(2030, 1, 1, tzinfo=UTC))
    validity_of(whole[:size] + b"\n-----END CERTIFICATE-----\n")
