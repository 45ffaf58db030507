"""Devices of ggml-rpc-servers on other machines: who answers, with what.

An engine that is given a dead server goes on without it and says so only in passing, and one that
answers nonsense makes it abort. So each server is asked for itself: first whether it takes a
connection, then an engine for its devices.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
HUNG_S = 60.0  # one that takes connections and then says nothing costs each look LIST_S
NO_ENGINE = "no llama-server here knows --rpc; scripts/build_backends.sh builds one that does"


class ServerSilent(SupervisorError):
    """A ggml-rpc-server that cannot be used now."""

    def __init__(self, *, server: str, why: str, is_costly: bool = False) -> None:
        self.server, self.why = server, why
        self.is_costly = is_costly
        """True where finding it out took an engine's patience."""
        super().__init__(f"RPC server {server}: {why}; models are placed without it")


@dataclass(frozen=True, slots=True)
class Remote:
    """All servers at one moment."""

    devices: tuple[Device, ...] = ()
    """In the order of the servers; one without an engine's name for each that is silent."""
    notes: tuple[str, ...] = ()


Said = tuple[EngineDevice, ...] | ServerSilent


@dataclass(frozen=True, slots=True)
class _Heard:
    """What one server said last, and until when that is good enough."""

    said: Said
    due_s: float


class RpcServers:
    """Looks after the configured servers. Servers and engines are replaced whole by `adopt`.

    A ggml-rpc-server serves one client at a time: one that works for a child of ours is left
    alone, and goes by what it said before. Asked meanwhile, it would answer into the closed socket
    of whoever gave up waiting, and die of that (seen in b10434).
    """

    def __init__(self) -> None:
        self._servers: tuple[str, ...] = ()
        self._engines: tuple[Engine, ...] = ()
        self._in_use: frozenset[str] = frozenset()
        self._heard: dict[str, _Heard] = {}

    def adopt(self, servers: Sequence[str], engines: Sequence[Engine]) -> None:
        """Go on with these servers, to be asked by these engines."""
        self._servers = tuple(dict.fromkeys(servers))
        self._engines = tuple(engine for engine in engines if FLAG in engine.flags)
        self.look_again()

    def leave_alone(self, servers: Iterable[str]) -> None:
        """Ask none of these until called again: children of ours are their clients."""
        self._in_use = frozenset(servers)

    async def look(self) -> Remote:
        """Every server as of the last ASK_EVERY_S, those that are due asked at once."""
        while due := self._due():
            servers, engines = self._servers, self._engines
            async with asyncio.TaskGroup() as tasks:
                asks = {s: tasks.create_task(_devices_of(s, engines)) for s in due}
            if (servers, engines) == (self._servers, self._engines):  # else `adopt` came meanwhile
                self._heard.update({s: _heard(ask.result()) for s, ask in asks.items()})
        return _remote({s: self._heard[s].said for s in self._servers}, self._engines)

    def _due(self) -> list[str]:
        now_s = monotonic()
        return [s for s in self._servers if s not in self._heard or self._is_due(s, now_s)]

    def _is_due(self, server: str, now_s: float) -> bool:
        return server not in self._in_use and now_s >= self._heard[server].due_s

    def look_again(self) -> None:
        """Have the next look ask every server, however young the last answers are."""
        self._heard = {s: self._heard[s] for s in self._in_use if s in self._heard}


def _heard(said: Said) -> _Heard:
    is_hung = isinstance(said, ServerSilent) and said.is_costly
    return _Heard(said, monotonic() + (HUNG_S if is_hung else ASK_EVERY_S))


def _remote(heard: Mapping[str, Said], engines: Sequence[Engine]) -> Remote:
    devices: list[Device] = []
    notes: list[str] = []
    n_named = 0
    backends = dict.fromkeys(engine.backend for engine in engines)
    for server, said in heard.items():
        match said:
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


async def _devices_of(server: str, engines: Sequence[Engine]) -> Said:
    """What one server offers, or why it offers nothing."""
    if not engines:
        return ServerSilent(server=server, why=NO_ENGINE)
    if (why := await _why_unreachable(server)) is not None:
        return ServerSilent(server=server, why=why)
    try:
        listed = await list_devices(engines[0], limit_s=LIST_S, rpc_server=server)
    except SupervisorError as exc:
        why = f"no device could be listed: {exc}"
        return ServerSilent(server=server, why=why, is_costly=True)
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
