"""The outcome of a transaction: the functions that decide it, and how a broker learns of it."""

import inspect
from collections.abc import Awaitable, Callable
from enum import IntEnum

from firetrail.client.messages.received_message import Received
from firetrail.client.messages.send_requests import OutgoingMessage, SendResult
from firetrail.errors import ConfigError
from firetrail.format.kernels.draft import Message
from firetrail.format.layout import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from firetrail.format.values.ids import decode_message_id
from firetrail.remoting.messages.headers import CheckTransactionHeader, EndTransactionHeader


class Outcome(IntEnum):
    """The outcome of a transaction."""

    COMMIT = TRANSACTION_COMMIT
    """Consumers get the message."""
    ROLLBACK = TRANSACTION_ROLLBACK
    """The message is discarded."""
    UNKNOWN = TRANSACTION_NONE
    """The outcome is not known yet. The broker asks again later."""


Decide = Callable[[Message], Outcome | Awaitable[Outcome]]
"""Decides the outcome of a transaction right after its half message is stored."""
TransactionCheck = Callable[[Received], Outcome | Awaitable[Outcome]]
"""Decides the outcome of a transaction when a broker asks for it."""


async def decided(function: str, returned: Outcome | Awaitable[Outcome]) -> Outcome:
    """Return the outcome that a user's function returned; raise ConfigError for any other value.

    Args:
        function: The name of the function, for the error message.
        returned: The returned value, or an awaitable of it.
    """
    outcome = await returned if inspect.isawaitable(returned) else returned
    if not isinstance(outcome, Outcome):
        allowed = "expected Outcome.COMMIT, Outcome.ROLLBACK or Outcome.UNKNOWN"
        raise ConfigError(f"the return value of {function}", outcome, allowed)
    return outcome


def end_header(
    group: str, draft: OutgoingMessage, result: SendResult, outcome: Outcome
) -> EndTransactionHeader:
    """Return the header that ends the transaction of a half message that was just sent."""
    return EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=result.queue_offset,
        commit_log_offset=decode_message_id(result.offset_message_id).physical_offset,
        commit_or_rollback=int(outcome),
        from_transaction_check=False,
        msg_id=draft.message_id,
        transaction_id=result.transaction_id,
        topic=draft.topic,
    )


def checked_header(
    group: str, check: CheckTransactionHeader, topic: str, outcome: Outcome
) -> EndTransactionHeader:
    """Return the header that ends a transaction whose outcome a broker asked for."""
    return EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=check.tran_state_table_offset,
        commit_log_offset=check.commit_log_offset,
        commit_or_rollback=int(outcome),
        from_transaction_check=True,
        msg_id=check.msg_id,
        transaction_id=check.transaction_id,
        topic=topic,
    )
