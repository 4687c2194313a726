"""The table of request codes says what is true."""

import re
from pathlib import Path

import pytest

from firetrail.auth.credentials import Credentials
from firetrail.broker.broker import Broker
from firetrail.broker.broker_config import BrokerConfig
from firetrail.cli.compatibility_page import with_lists
from firetrail.proxy.calls.grpc_guard import CALL_NEEDS
from firetrail.remoting.messages.requests import REQUESTS, RequestTarget
from firetrail.remoting.wire.codes import PLAIN_CODES, RequestCode

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def codes_of(target: RequestTarget) -> set[int]:
    return {code for code, row in REQUESTS.items() if row.target is target}


def test_the_lists_are_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    command = "python -m firetrail.cli.compatibility_page docs/compatibility.md"
    assert with_lists(page) == page, f"run: {command}"
    section = page.partition("\n## Requests\n")[2].partition("\n### ")[0]
    shown = {int(code): name for code, name in re.findall(r"(\d+) `([A-Z_0-9]+)`", section)}
    assert shown == {code.value: code.name for code in RequestCode}


def test_a_page_without_a_place_for_the_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="the page lacks the comment"):
        with_lists("# Compatibility\n")


async def test_servers_answer_the_codes_that_their_rows_say() -> None:
    config = BrokerConfig(authentication=True, init_user=Credentials("admin", "not-easy-to-guess"))
    async with Broker.running(config=config) as broker:
        of_broker, of_name_server = broker.answered_codes
    of_broker |= set(PLAIN_CODES)  # a broker answers these with ACL 1.0, and not those of ACL 2.0
    assert of_broker == codes_of(RequestTarget.BROKER)
    assert of_name_server == codes_of(RequestTarget.NAME_SERVER)


def test_the_list_of_other_codes_has_only_unknown_ones() -> None:
    other = PAGE.read_text("utf-8").partition("\n### Other codes\n")[2]
    codes = [int(code) for code in re.findall(r"(\d+)\s+`[A-Z_]+`", other)]
    assert len(codes) == len(set(codes)) > 0
    known = set(RequestCode).intersection(codes)
    assert not known, "remove these codes from the list: they are in the table of requests now"


def test_the_list_of_grpc_calls_is_complete() -> None:
    section = PAGE.read_text("utf-8").partition("\n### Calls\n")[2].partition("\n### ")[0]
    listed = re.findall(r"[A-Z]\w+", section.partition(":")[2])
    assert sorted(listed) == sorted(CALL_NEEDS)
