"""The table of request codes says what is true."""

from __future__ import annotations

import re
from pathlib import Path

from firetrail.access.rules import PLAIN_CODES
from firetrail.auth.credentials import Credentials
from firetrail.broker.broker import Broker
from firetrail.broker.config import BrokerConfig
from firetrail.remoting.codes import RequestCode

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}


async def test_the_page_lists_every_code_and_who_answers_it() -> None:
    config = BrokerConfig(authentication=True, init_user=Credentials("admin", "not-easy-to-guess"))
    async with Broker.running(config=config) as broker:
        of_broker, of_name_server = broker.answered_codes
    of_broker |= set(PLAIN_CODES)  # a broker answers these with ACL 1.0, and not those of ACL 2.0
    expected = []
    for code in RequestCode:
        who = ["broker"] * (code in of_broker) + ["name server"] * (code in of_name_server)
        if code in TO_CLIENTS:
            who = ["sent to clients"]
        expected.append((str(int(code)), code.name, ", ".join(who) or "not supported"))
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == expected


def test_the_list_of_other_codes_has_only_unknown_ones() -> None:
    other = PAGE.read_text("utf-8").partition("\n### Other codes\n")[2]
    codes = [int(code) for code in re.findall(r"(\d+)\s+`[A-Z_]+`", other)]
    assert len(codes) == len(set(codes)) > 0
    known = set(RequestCode).intersection(codes)
    assert not known, "remove these codes from the list: they are in the table of requests now"
