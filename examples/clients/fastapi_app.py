"""A FastAPI service whose producer and consumer start and stop with it.

With ``firetrail up`` running, and uvicorn installed::

    uvicorn --app-dir examples/clients fastapi_app:app
    curl -X POST localhost:8000/orders/7
    curl localhost:8000/shipped
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from firetrail.client import (
    Admin,
    ConsumeFromWhere,
    FiretrailError,
    Message,
    Producer,
    PushConsumer,
    Received,
)

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FIRST = ConsumeFromWhere.FIRST_OFFSET

producer = Producer(NAMESRV, "shop")
shipped: list[int] = []


async def ship(message: Received) -> None:
    """Returning confirms the order, an error has it delivered again."""
    shipped.append(int(message.body))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the clients before the first request, and close them after the last one."""
    async with Admin(NAMESRV) as admin:
        await admin.create_topic("orders", queues=4)
    async with producer, PushConsumer(NAMESRV, "shipping", ship, {"orders": "*"}, start=FIRST):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def order(number: int) -> dict[str, str]:
    """Answer when the broker has stored the order."""
    try:
        sent = await producer.send(Message("orders", b"%d" % number, keys=[str(number)]))
    except FiretrailError as error:
        raise HTTPException(503, str(error)) from error
    return {"message_id": sent.message_id}


@app.get("/shipped")
async def shipped_orders() -> list[int]:
    """Return the orders that the consumer has shipped."""
    return sorted(shipped)
