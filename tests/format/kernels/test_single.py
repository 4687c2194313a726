"""One record at a time, held against the careful decoder and a model of the query."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.format.kernels.drafts import Draft, drafts, fenced, pack_log

from firetrail.format.kernels.single import KeyQuestion, unpack_record
from firetrail.format.properties import KEYS, UNIQ_KEY, decode_properties
from firetrail.format.record import Record, _decode_carefully
from firetrail.format.values.javahash import index_key_hash, java_text

FOREVER = (-(2**63), 2**63 - 1)


class TestUnpack:
    @given(drafts, st.binary(max_size=20), st.integers(0, 2**40))
    def test_is_what_the_careful_decoder_says(
        self, draft: Draft, before: bytes, offset: int
    ) -> None:
        data = before + draft.pack(offset)
        expected = _decode_carefully(memoryview(data), len(before), True)
        assert isinstance(expected, Record)
        hosts = {draft.born_host: expected.born_host, draft.store_host: expected.store_host}
        found = unpack_record(fenced(data), len(before), hosts.__getitem__, True)
        assert found == tuple(expected)

    @given(drafts, st.integers(0, 8 * 600), st.booleans())
    def test_a_flipped_bit_is_judged_as_by_decoding(
        self, draft: Draft, bit: int, check_crc: bool
    ) -> None:
        data = bytearray(draft.pack(0))
        data[bit // 8 % len(data)] ^= 1 << bit % 8
        found = unpack_record(fenced(bytes(data)), 0, bytes, check_crc)
        try:
            expected = _decode_carefully(memoryview(data), 0, check_crc)
        except ValueError:
            assert found is None
        else:
            assert found is None or found[14:15] == expected[14:15]  # type: ignore[index]

    @pytest.mark.parametrize("at", [-1, 1, 10**9, -(2**63)])
    def test_a_place_outside_the_buffer_has_no_record(self, at: int) -> None:
        assert unpack_record(fenced(Draft().pack(0)), at, bytes, True) is None

    def test_the_body_counts_if_asked(self) -> None:
        data = Draft(body=b"good").pack(0).replace(b"good", b"evil")
        assert unpack_record(data, 0, bytes, True) is None
        found = unpack_record(data, 0, bytes, False)
        assert found is not None and found[14] == b"evil"


TEXT = st.text(st.sampled_from("ab 中\U0001f525"), max_size=4)


class TestKeyQuestion:
    @given(st.text(max_size=9), st.text(max_size=9))
    def test_the_hash_is_that_of_the_index(self, topic: str, key: str) -> None:
        assert KeyQuestion(topic, key, *FOREVER).key_hash == index_key_hash(topic, key)

    @given(TEXT, TEXT, TEXT, TEXT, TEXT, st.booleans())
    @example("a", "a", "a", "b", "", True)
    def test_which_records_fit(
        self, topic: str, key: str, stored_topic: str, keys: str, unique: str, second: bool
    ) -> None:
        items = [(KEYS, keys), (UNIQ_KEY, unique)]
        properties = "".join(f"{name}\x01{value}\x02" for name, value in items).encode()
        draft = Draft(topic=stored_topic.encode(), properties=properties)
        log = pack_log([draft, draft], base=1000)
        at = draft.size if second else 0
        found = KeyQuestion(topic, key, *FOREVER).fits(fenced(log), at, len(log), 1000)
        stored = decode_properties(properties)
        fits = key and (key == stored.get(UNIQ_KEY) or key in stored.get(KEYS, "").split(" "))
        assert found == (draft.size if fits and java_text(draft.topic) == topic else 0)

    @pytest.mark.parametrize(
        ("begin", "end", "fits"), [(5, 5, True), (0, 4, False), (6, 9, False), (0, 9, True)]
    )
    def test_only_records_of_the_time_range_fit(self, begin: int, end: int, fits: bool) -> None:
        log = replace(Draft(), store_time=5).pack(0)
        question = KeyQuestion("topic", "k2", begin, end)
        assert question.fits(fenced(log), 0, len(log), 0) == (len(log) if fits else 0)

    @pytest.mark.parametrize("limit", [0, 50, -1, 10**9])
    def test_a_partial_record_does_not_fit(self, limit: int) -> None:
        log = fenced(Draft().pack(0))
        assert KeyQuestion("topic", "k1", *FOREVER).fits(log, 0, limit, 0) == 0
        assert KeyQuestion("topic", "k1", *FOREVER).fits(log, -1, len(log), 0) == 0

    def test_half_of_a_pair_finds_nothing(self) -> None:
        log = Draft(properties=b"KEYS\x01\xed\xa0\x80 ? \xef\xbf\xbd\x02").pack(0)
        for key in ("?", "\ufffd"):
            assert KeyQuestion("topic", key, *FOREVER).fits(log, 0, len(log), 0) == len(log)
        assert KeyQuestion("to\ud800", "k", *FOREVER).fits(log, 0, len(log), 0) == 0
