"""The checks of live settings, by the name of the setting."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.broker.brokers import SMALL, Talk

from firetrail.broker import broker_config
from firetrail.broker.broker_config import BrokerConfig
from firetrail.remoting.wire.codes import RequestCode
from firetrail.store.settings import store_config
from firetrail.store.settings.store_config import StoreConfig

Check = Callable[[Talk], Awaitable[None]]
STORE: dict[str, tuple[StoreConfig, Check]] = {}
BROKER: dict[str, Check] = {}
QUICK = BrokerConfig(
    offsets_interval_ms=10,
    delay_interval_ms=10,
    transaction_check_interval_ms=10,
    register_interval_ms=1000,
)


class Reads:
    """Settings that note which of them are read."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._settings, name)


def of_store(*names: str, store: StoreConfig = SMALL) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        STORE.update(dict.fromkeys(names, (store, check)))
        return check

    return register


def of_broker(*names: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        BROKER.update(dict.fromkeys(names, check))
        return check

    return register


async def change(talk: Talk, **values: object) -> None:
    """Change settings as an administrator does, by their keys in broker.conf."""
    tables = {**store_config.SETTINGS, **broker_config.SETTINGS}
    lines = [f"{tables[name].key}={tables[name].written(v)}" for name, v in values.items()]
    body = "\n".join(lines).encode()
    answer = await talk.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == 0, answer.remark


@asynccontextmanager
async def reads_of(talk: Talk, *, store: bool) -> AsyncIterator[set[str]]:
    """Yield the names of the settings that are read from now on."""
    live: Any = talk.broker.store._engine.live if store else talk.broker._live
    before = live.current
    live.current = watched = Reads(before)
    try:
        yield watched.names
    finally:
        live.current = before
