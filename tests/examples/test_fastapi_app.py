"""The FastAPI example: its clients live as long as the application, which the test starts."""

import importlib.util
from types import ModuleType

import pytest
from tests.client.clusters import until
from tests.examples.asgi import ask, started
from tests.examples.test_examples import EXAMPLES
from tests.extras import require

from firetrail.broker.background import BackgroundBroker


def load(namesrv: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the example for a cluster."""
    require("fastapi")
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    spec = importlib.util.spec_from_file_location("app", EXAMPLES / "clients" / "fastapi_app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_orders_are_sent_and_shipped_while_the_app_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with BackgroundBroker() as broker:
        example = load(broker.namesrv, monkeypatch)
        async with started(example.app):
            for number in (7, 8):
                status, answer = await ask(example.app, "POST", f"/orders/{number}")
                assert (status, len(answer["message_id"])) == (202, 32)
            await until(lambda: len(example.shipped) == 2)
            assert await ask(example.app, "GET", "/shipped") == (200, [7, 8])
        status, answer = await ask(example.app, "POST", "/orders/9")
        assert (status, "is closed" in answer["detail"]) == (503, True), answer
