"""RocketMQ's wire, without I/O: frames, headers, bodies; thin asyncio server and client on top."""
