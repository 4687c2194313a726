"""Firetrail's own client: python hello_firetrail.py 127.0.0.1:9876."""

import asyncio
import sys

from firetrail.client import ConsumeFromWhere, Message, Producer, PushConsumer, Received


async def main(namesrv: str) -> None:
    """Send three messages, and consume them as a group."""
    async with Producer(namesrv) as producer:
        for n in range(3):
            await producer.send(Message("HelloFiretrail", f"hello {n}".encode(), tags="greeting"))

    left = asyncio.Semaphore(0)

    async def listener(message: Received) -> None:
        """Returning confirms the message, an error has it delivered again."""
        print("got", message.body.decode())
        left.release()

    topics = {"HelloFiretrail": "greeting"}
    first = ConsumeFromWhere.FIRST_OFFSET
    async with PushConsumer(namesrv, "hello-firetrail", listener, topics, start=first):
        for _ in range(3):
            await left.acquire()


asyncio.run(main(sys.argv[1]))
