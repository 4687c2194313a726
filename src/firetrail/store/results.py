"""What puts and gets answer with.

Both are made for every call and so live among the kernels; this is where the store takes them from.
"""

from firetrail.format.record import decode_message
from firetrail.store.kernels.answer import GetResult, GetStatus, QueueCursor
from firetrail.store.kernels.append import PutResult, PutStatus

__all__ = ["GetResult", "GetStatus", "PutResult", "PutStatus", "QueueCursor", "decode_message"]
