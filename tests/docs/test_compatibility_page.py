"""The table of request codes says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from firetrail.access.rules import PLAIN_CODES
from firetrail.auth.credentials import Credentials
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.remoting.codes import RequestCode
from firetrail.remoting.requests import REQUESTS, RequestSpec, RequestTarget

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def codes_of(target: RequestTarget) -> set[int]:
    return {code for code, row in REQUESTS.items() if row.target is target}


def on_slave(row: RequestSpec) -> str:
    if row.target is not RequestTarget.BROKER:
        return ""
    return "answered" if row.on_slave is None else f"code {row.on_slave.code}"


async def test_the_page_lists_every_code_and_who_answers_it() -> None:
    config = BrokerConfig(authentication=True, init_user=Credentials("admin", "not-easy-to-guess"))
    async with Broker.running(config=config) as broker:
        of_broker, of_name_server = broker.answered_codes
    of_broker |= set(PLAIN_CODES)  # a broker answers these with ACL 1.0, and not those of ACL 2.0
    expected = [
        (str(int(code)), code.name, REQUESTS[code].target.value, on_slave(REQUESTS[code]))
        for code in RequestCode
    ]
    assert of_broker == codes_of(RequestTarget.BROKER)
    assert of_name_server == codes_of(RequestTarget.NAME_SERVER)
    line = r"^\| (\d+) \| `(\w+)` \| (.+) \| (.*) \|$"
    rows = re.findall(line, PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == expected


def test_the_list_of_other_codes_has_only_unknown_ones() -> None:
    other = PAGE.read_text("utf-8").partition("\n### Other codes\n")[2]
    codes = [int(code) for code in re.findall(r"(\d+)\s+`[A-Z_]+`", other)]
    assert len(codes) == len(set(codes)) > 0
    known = set(RequestCode).intersection(codes)
    assert not known, "remove these codes from the list: they are in the table of requests now"
