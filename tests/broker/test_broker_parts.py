"""The parts of a broker and their constructors."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest

import firetrail.broker
from firetrail.broker.broker_parts import combined
from firetrail.remoting.wire.codes import RequestCode

COLLABORATORS_MAX = 6


def test_constructors_take_at_most_six_collaborators() -> None:
    """Those that need more take a BrokerState, whose fields have names."""
    long = []
    for module in pkgutil.walk_packages(firetrail.broker.__path__, "firetrail.broker."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__ != module.name or dataclasses.is_dataclass(kind):
                continue
            positional = [
                parameter
                for parameter in inspect.signature(kind).parameters.values()
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            ]
            if not issubclass(kind, tuple) and len(positional) > COLLABORATORS_MAX:
                long.append(f"{module.name}.{name}")
    assert not long


def answer(*_: object) -> None: ...


def test_two_handlers_of_one_request_are_refused() -> None:
    pull, send = RequestCode.PULL_MESSAGE, RequestCode.SEND_MESSAGE
    with pytest.raises(ValueError, match=r"two processors handle request PULL_MESSAGE; remove one"):
        combined([{send: answer, pull: answer}, {pull: answer}])
    assert combined([{send: answer}, {pull: answer}]) == {send: answer, pull: answer}
