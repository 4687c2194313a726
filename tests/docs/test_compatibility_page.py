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


def answered_by(row: RequestSpec) -> str:
    """Return the name of the list on the page that has the request."""
    if row.target is RequestTarget.BROKER:
        if row.on_slave is None:
            return "Brokers, slaves included"
        return f"Brokers; slaves refuse with code {row.on_slave.code}"
    return {
        RequestTarget.NAME_SERVER: "Name servers",
        RequestTarget.CLIENT: "Clients of a broker",
        RequestTarget.NOBODY: "Not supported",
    }[row.target]


async def test_the_page_lists_every_code_and_who_answers_it() -> None:
    config = BrokerConfig(authentication=True, init_user=Credentials("admin", "not-easy-to-guess"))
    async with Broker.running(config=config) as broker:
        of_broker, of_name_server = broker.answered_codes
    of_broker |= set(PLAIN_CODES)  # a broker answers these with ACL 1.0, and not those of ACL 2.0
    expected: dict[str, list[str]] = {}
    for code in RequestCode:
        expected.setdefault(answered_by(REQUESTS[code]), []).append(f"{code:d} `{code.name}`")
    assert of_broker == codes_of(RequestTarget.BROKER)
    assert of_name_server == codes_of(RequestTarget.NAME_SERVER)
    section = PAGE.read_text("utf-8").partition("\n## Requests\n")[2].partition("\n### ")[0]
    items = re.findall(r"- \*\*(.+?)\*\*: (.+?)\.(?= - |$)", " ".join(section.split()))
    assert {name: codes.split(", ") for name, codes in items} == expected


def test_the_list_of_other_codes_has_only_unknown_ones() -> None:
    other = PAGE.read_text("utf-8").partition("\n### Other codes\n")[2]
    codes = [int(code) for code in re.findall(r"(\d+)\s+`[A-Z_]+`", other)]
    assert len(codes) == len(set(codes)) > 0
    known = set(RequestCode).intersection(codes)
    assert not known, "remove these codes from the list: they are in the table of requests now"
