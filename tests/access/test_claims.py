"""The table of claims in the threat model has attacks for each of its rows."""

import re
from pathlib import Path

from tests.access import test_grpc_claims, test_remoting_claims

PAGE = Path(__file__).parents[2] / "docs/design/threat-model.md"
REMOTING_ONLY = {"owner of a lock"}
GRPC_ONLY = {"answer to a question"}


def test_every_claim_is_attacked_over_both_protocols() -> None:
    section = PAGE.read_text().partition("## What clients claim")[2].partition("\n## ")[0]
    claims = set(re.findall(r"^\| ([^|]+?) \| (?!is bound)", section, re.M)) - {"claim"}
    claims = {claim for claim in claims if not claim.startswith("---")}
    assert len(claims) > 10
    assert claims - GRPC_ONLY == set(test_remoting_claims.ATTACKS.by_claim)
    assert claims - REMOTING_ONLY == set(test_grpc_claims.ATTACKS.by_claim)
