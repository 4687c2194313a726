"""RocketMQ's remoting protocol: frames, headers and bodies without I/O, asyncio server, client."""
