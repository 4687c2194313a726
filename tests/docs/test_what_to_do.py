"""The page *What to do when …* has every state that ``firetrail cluster status`` can show."""

import re

from tests.clone import ROOT

from firetrail.cli.replication.member_states import ADVICE, PAGE, MemberState

TEXT = (ROOT / PAGE).read_text(encoding="utf-8")


def test_the_page_has_a_section_for_every_state() -> None:
    sections = re.findall(r"^## (\S+)$", TEXT, re.MULTILINE)
    assert sections == sorted(sections, key=sections.index)
    assert {*sections} == {state.value for state in MemberState}
    assert len(sections) == len(MemberState)


def test_the_index_of_the_page_has_every_state() -> None:
    index = TEXT[: TEXT.index("\n## ")]
    assert {*re.findall(r"\[([\w-]+)\]\(#\1\)", index)} == {state.value for state in MemberState}


def test_states_that_need_nothing_are_listed_as_such() -> None:
    (line,) = re.findall(r"States that need nothing: (.*?)\n- ", TEXT, re.DOTALL)
    well = {state.value for state, advice in ADVICE.items() if advice.is_well}
    assert {*re.findall(r"\[([\w-]+)\]", line)} == well
