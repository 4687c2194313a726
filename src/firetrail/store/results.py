"""The results of puts and gets.

They are created on every call and are therefore kernels; the store imports them from here.
"""

from firetrail.format.record import decode_message
from firetrail.store.kernels.answer import GetResult, GetStatus, QueueCursor
from firetrail.store.kernels.append import PutResult
from firetrail.store.outcomes import OUTCOMES, UNCONFIRMED, PutOutcome, PutStatus

__all__ = [
    "OUTCOMES",
    "UNCONFIRMED",
    "GetResult",
    "GetStatus",
    "PutOutcome",
    "PutResult",
    "PutStatus",
    "QueueCursor",
    "decode_message",
]
