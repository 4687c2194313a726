"""The same act requires the same permission as a gRPC call and as a remoting request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.access.test_rules import needs_of, text_of

from firetrail.proxy.calls.grpc_guard import CALL_NEEDS
from firetrail.proxy.schema import messages
from firetrail.proxy.schema.messages import MessageQueue, Resource, Settings
from firetrail.remoting.wire.codes import RequestCode as Code

TOPIC, GROUP = Resource(name="T1"), Resource(name="CG")
PAIRS: Mapping[str, tuple[Code, ...]] = {
    "QueryRoute": (Code.GET_ROUTEINFO_BY_TOPIC,),
    "QueryAssignment": (Code.QUERY_ASSIGNMENT,),
    "SendMessage": (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE),
    "ReceiveMessage": (Code.POP_MESSAGE, Code.NOTIFICATION),
    "AckMessage": (Code.ACK_MESSAGE, Code.BATCH_ACK_MESSAGE),
    "ChangeInvisibleDuration": (Code.CHANGE_MESSAGE_INVISIBLETIME,),
    "EndTransaction": (Code.END_TRANSACTION,),
    "RecallMessage": (Code.RECALL_MESSAGE,),
    "PullMessage": (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE),
    "UpdateOffset": (Code.UPDATE_CONSUMER_OFFSET,),
    "GetOffset": (Code.QUERY_CONSUMER_OFFSET,),
    "QueryOffset": (
        *(Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_MAX_OFFSET),
        *(Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME),
    ),
    "Heartbeat": (Code.UNREGISTER_CLIENT,),  # subscriptions are in Telemetry
    "NotifyClientTermination": (Code.UNREGISTER_CLIENT,),
    "Telemetry": (Code.HEART_BEAT,),
}
"""Calls, and the requests with the same effect."""
OTHERS = {
    # The request names a record, for whose topic the handler asks (``require_consumed``).
    "ForwardMessageToDeadLetterQueue": {"Group:CG Sub", "Topic:T1 Sub"},
    # Lite topics are not supported.
    "SyncLiteSubscription": {"Group:CG Sub", "Topic:T1 Sub"},
}


def request_of(call: str) -> Any:
    """Return the message of a call with every name that it can have."""
    if call == "Telemetry":
        settings = Settings()
        settings.subscription.group.CopyFrom(GROUP)
        settings.subscription.subscriptions.add().topic.CopyFrom(TOPIC)
        return settings
    request = getattr(messages, f"{call}Request")()
    named = {"topic": TOPIC, "group": GROUP, "message_queue": MessageQueue(topic=TOPIC)}
    for field in request.DESCRIPTOR.fields:
        if field.name in named:
            getattr(request, field.name).CopyFrom(named[field.name])
        elif field.name == "messages":
            request.messages.add().topic.CopyFrom(TOPIC)
    return request


def test_every_call_has_a_row() -> None:
    assert {*PAIRS, *OTHERS} == set(CALL_NEEDS)


@pytest.mark.parametrize("call", CALL_NEEDS)
def test_the_same_act_requires_the_same_permission(call: str) -> None:
    needed = {text_of(need) for need in CALL_NEEDS[call](request_of(call))}
    if call in OTHERS:
        assert needed == OTHERS[call]
    for code in PAIRS.get(call, ()):
        assert needed == {text_of(need) for need in needs_of(code)}, code.name
