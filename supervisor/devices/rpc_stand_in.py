"""Which RPC protocols an engine speaks: asked of the engine itself, with a stand-in for the server.

No version string tells it, and a real server must not be asked by a process that may have to be
killed (see rpc_protocol). So the engine lists the devices of a listener of ours that answers as
the server did.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

from planners.backends import Engine
from planners.rpc import NAME_PREFIX
from planners.sizes import GIB
from supervisor.devices.rpc_protocol import (
    CAPS_BYTES,
    DEVICE_COUNT,
    GET_DEVICE_MEMORY,
    HELLO,
    LENGTH,
    MEMORY,
    U32,
    Protocol,
)
from supervisor.engines.trial import list_devices

LIST_S = 10.0


async def speaks(engine: Engine, protocol: Protocol) -> bool:
    """True where the engine would use a server of this protocol. Raises TrialFailed, OSError."""

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError, EOFError):  # the engine hung up: it has heard enough
            await _answer_all(reader, writer, protocol)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as stand_in:
        address = f"127.0.0.1:{stand_in.sockets[0].getsockname()[1]}"
        listed = await list_devices(engine, limit_s=LIST_S, rpc_server=address)
    return any(device.name.startswith(NAME_PREFIX) for device in listed)


async def _answer_all(reader: StreamReader, writer: StreamWriter, protocol: Protocol) -> None:
    """One device with one GiB; hangs up on what no listing asks."""
    while True:
        command = (await reader.readexactly(1))[0]
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > CAPS_BYTES:
            return
        await reader.readexactly(length)
        if command == HELLO:
            padded = bytes(1 + CAPS_BYTES) if length else b""
            said = bytes(protocol) + padded
        elif command == DEVICE_COUNT:
            said = U32.pack(1)
        elif command == GET_DEVICE_MEMORY:
            said = MEMORY.pack(GIB, GIB)
        else:
            return
        writer.write(LENGTH.pack(len(said)) + said)
