"""Blocks of headers of responses."""

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrail.proxy.http2.response_headers import encode_block

ASCII = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
LENGTHS = st.integers(120, 130) | st.integers(250, 260) | st.integers(16_000, 17_000)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1)


@settings(max_examples=40)
@given(st.lists(st.tuples(NAMES, ASCII | LENGTHS.map("x".__mul__)), max_size=8))
def test_a_library_reads_our_blocks(pairs: list[tuple[str, str]]) -> None:
    decoder = hpack.Decoder(max_header_list_size=1 << 30)
    found = decoder.decode(encode_block(pairs), raw=True)
    assert [(name.decode(), value.decode()) for name, value in found] == pairs
