"""Devices of ggml-rpc-servers on other machines: who answers, with what.

An engine that is given a dead server goes on without it and says so only in passing, and one that
answers nonsense makes it abort. So each server is asked for itself: first whether it takes a
connection, then an engine for its devices.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic

from planners.backends import Engine, EngineDevice
from planners.hardware import Device, DeviceKind
from planners.rpc import NAME_PREFIX, device_id
from supervisor.errors import SupervisorError
from supervisor.trial import list_devices

FLAG = "--rpc"
CONNECT_S = 2.0  # a host that is switched off answers nothing at all
LIST_S = 10.0
ASK_EVERY_S = 10.0  # asking costs a process; a dead server costs a connection
NO_ENGINE = "no llama-server here knows --rpc; scripts/build_backends.sh builds one that does"


class ServerSilent(SupervisorError):
    """A ggml-rpc-server that cannot be used now."""

    def __init__(self, *, server: str, why: str) -> None:
        self.server, self.why = server, why
        super().__init__(f"RPC server {server}: {why}; models are placed without it")


@dataclass(frozen=True, slots=True)
class Remote:
    """All servers at one moment."""

    devices: tuple[Device, ...] = ()
    """In the order of the servers; one without an engine's name for each that is silent."""
    notes: tuple[str, ...] = ()


class RpcServers:
    """Looks after the configured servers. Servers and engines are replaced whole by `adopt`."""

    def __init__(self) -> None:
        self._servers: tuple[str, ...] = ()
        self._engines: tuple[Engine, ...] = ()
        self._last = Remote()
        self._due_s = -inf

    def adopt(self, servers: Sequence[str], engines: Sequence[Engine]) -> None:
        """Go on with these servers, to be asked by these engines."""
        self._servers = tuple(dict.fromkeys(servers))
        self._engines = tuple(engine for engine in engines if FLAG in engine.flags)
        self._due_s = -inf

    async def look(self) -> Remote:
        """Every server as of the last ASK_EVERY_S, all asked at once."""
        while monotonic() >= self._due_s:
            servers, engines = self._servers, self._engines
            last = await _asked(servers, engines)
            if (servers, engines) == (self._servers, self._engines):  # else `adopt` came meanwhile
                self._last, self._due_s = last, monotonic() + ASK_EVERY_S
        return self._last

    def look_again(self) -> None:
        """Have the next look ask every server, however young the last answers are."""
        self._due_s = -inf


async def _asked(servers: Sequence[str], engines: Sequence[Engine]) -> Remote:
    async with asyncio.TaskGroup() as tasks:
        asks = [tasks.create_task(_devices_of(server, engines)) for server in servers]
    devices: list[Device] = []
    notes: list[str] = []
    n_named = 0
    backends = dict.fromkeys(engine.backend for engine in engines)
    for server, ask in zip(servers, asks, strict=True):
        match ask.result():
            case ServerSilent() as silent:
                notes.append(str(silent))
                devices.append(_silent(server))
            case tuple() as listed:
                for index, seen in enumerate(listed):
                    name = f"{NAME_PREFIX}{n_named + index}"
                    names = tuple((backend, name) for backend in backends)
                    devices.append(_device(server, index, seen, names=names))
                n_named += len(listed)
    return Remote(tuple(devices), tuple(notes))


async def _devices_of(
    server: str, engines: Sequence[Engine]
) -> tuple[EngineDevice, ...] | ServerSilent:
    """What one server offers, or why it offers nothing."""
    if not engines:
        return ServerSilent(server=server, why=NO_ENGINE)
    if (why := await _why_unreachable(server)) is not None:
        return ServerSilent(server=server, why=why)
    try:
        listed = await list_devices(engines[0], limit_s=LIST_S, rpc_server=server)
    except SupervisorError as exc:
        return ServerSilent(server=server, why=f"no device could be listed: {exc}")
    remote = tuple(device for device in listed if device.name.startswith(NAME_PREFIX))
    why = "it takes connections, but is no ggml-rpc-server of this engine's version"
    return remote or ServerSilent(server=server, why=why)


def _device(
    server: str, index: int, seen: EngineDevice, *, names: tuple[tuple[str, str], ...]
) -> Device:
    return Device(
        device_id=device_id(server, index),
        kind=DeviceKind.REMOTE,
        name=f"RPC server {server}" if index == 0 else f"RPC server {server}, device {index}",
        engine_names=names,
        total_bytes=seen.total_bytes or None,
        free_bytes=seen.free_bytes,
    )


def _silent(server: str) -> Device:
    return Device(
        device_id=device_id(server, 0),
        kind=DeviceKind.REMOTE,
        name=f"RPC server {server}",
        engine_names=(),
        total_bytes=None,
        free_bytes=None,
    )


async def _why_unreachable(server: str) -> str | None:
    """Why no connection comes about; None where one does."""
    host, _, port = server.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"no answer within {CONNECT_S:g} s"
    except OSError as exc:
        return f"cannot be reached ({exc.strerror or exc})"
    except UnicodeError:  # what getaddrinfo makes of an empty or overlong label
        return "cannot be reached (no host can have this name)"
    writer.close()
    return None
