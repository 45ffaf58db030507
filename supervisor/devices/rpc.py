"""Devices of ggml-rpc-servers on other machines: who answers, with what.

An engine that is given a dead server goes on without it and says so only in passing, and one that
answers nonsense makes it abort. So each server is asked for itself, in a task of its own, and goes
by its last answer: no profile waits for a server that hangs or works for somebody else.

    due ─ asked ─┬─ answers, or cannot be reached ─▶ heard, due again in ASK_EVERY_S
                 └─ says nothing ─▶ silent, and asked on: it answers when its client leaves
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic

import structlog
from msgspec import Struct, field

from planners.backends import Engine
from planners.hardware import Device, DeviceId, DeviceKind, Note, NoteKind
from planners.rpc import NAME_PREFIX, device_id
from supervisor.devices.rpc_protocol import (
    DeviceMemory,
    Greeting,
    Protocol,
    ServerSilent,
    greeting_of,
)
from supervisor.devices.rpc_stand_in import speaks
from supervisor.errors import SupervisorError

log = structlog.get_logger(__name__)

FLAG = "--rpc"
ASK_EVERY_S = 10.0  # an answer costs three connections and a millisecond of the server's
HUNG_S = 60.0  # after one that took our turn and then said nothing
GRACE_S = 0.5  # for the next answer of one that gave the last: a round trip around the world
ONCE_S = 5.0  # for all answers where nobody stays to hear later ones
NO_ENGINE = "no llama-server here knows --rpc; scripts/build_backends.sh builds one that does"
RETRY_S = 60.0  # after an engine that could not be asked which protocol it speaks
JUST_ASKED = "it was only just asked; it is used as soon as it answers"
NO_WORD = "it takes connections and does not answer; it serves one client at a time"


class Remote(Struct, frozen=True):
    """All servers at one moment."""

    devices: tuple[Device, ...] = ()
    """In the order of the servers; one without an engine's name for each that is silent."""
    silent: tuple[tuple[DeviceId, str], ...] = ()
    """Why servers cannot be used, under their first device; nothing of those only just asked."""
    notes: tuple[Note, ...] = ()


Said = Greeting | ServerSilent


class _Server(Struct):
    """One server: what it said last, and the question that is under way."""

    said: Said | None = None
    due_s: float = -inf
    is_stale: bool = False
    """Somebody wants to know better than `said`."""
    asking: asyncio.Task[None] | None = None
    asked_s: float = 0.0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no answer is awaited."""
    reported: str = ""
    """What the last look made of it."""


class _Trial(Struct, frozen=True):
    """Whether an engine speaks a protocol, and until when that is good enough."""

    speaks: bool
    until_s: float = inf


class RpcServers:
    """Looks after the configured servers. Servers and engines are replaced whole by `adopt`.

    At most one question is under way at each server. One that works for a child of ours is left
    alone and goes by what it said before: it could answer only when the child is gone.
    """

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._engines: dict[str, Engine] = {}
        self._in_use: frozenset[str] = frozenset()
        self._trials: dict[tuple[str, Protocol], _Trial] = {}
        self._poked = asyncio.Event()
        self._is_attended = False

    def adopt(self, servers: Sequence[str], engines: Sequence[Engine]) -> None:
        """Go on with these servers, to be used by these engines: of each backend the first."""
        for name in self._servers.keys() - set(servers):
            if (asking := self._servers[name].asking) is not None:
                asking.cancel()
        self._servers = {name: self._servers.get(name) or _Server() for name in servers}
        able = [engine for engine in engines if FLAG in engine.flags]
        self._engines = {engine.backend: engine for engine in reversed(able)}
        self._poked.set()

    def leave_alone(self, servers: Iterable[str]) -> None:
        """Ask none of these until called again: children of ours are their clients."""
        in_use = frozenset(servers)
        if in_use != self._in_use:
            self._in_use = in_use
            self._poked.set()  # who was left alone until now may be due

    def look_again(self) -> None:
        """Have the next look wait a moment for better answers than the last, however young."""
        for name, server in self._servers.items():
            server.due_s = -inf
            if self._is_attended and name not in self._in_use:
                server.is_stale = True
                server.answered.clear()
        self._poked.set()

    @property
    def has_news(self) -> bool:
        """True where a server is not what the last look made of it."""
        return any(self._gist(name) != s.reported for name, s in self._servers.items())

    async def attend(self, changed: Callable[[], None]) -> None:
        """Ask on for ever; `changed` is called when there is news."""
        self._is_attended = True
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._begin_due(tasks)
                    self._poked.clear()
                    if self.has_news:
                        changed()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._idle_s(monotonic())):
                            await self._poked.wait()
        finally:
            self._is_attended = False

    async def look(self) -> Remote:
        """Every server as of its last answer; where nobody attends, all are asked in ONCE_S."""
        if self._is_attended:
            stale = [s for s in self._servers.values() if s.is_stale and _is_good(s.said)]
            await _answers(stale, within_s=GRACE_S)
        else:
            await self._ask_once()
        await self._try_protocols()
        for name, server in self._servers.items():
            server.reported = self._gist(name)
        return self._remote()

    async def _ask_once(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            asked = self._begin_due(tasks)
            await _answers(asked.values(), within_s=ONCE_S)
            for name, server in asked.items():
                if server.asking is not None:
                    server.asking.cancel()
                    server.said = ServerSilent(server=name, why=NO_WORD)
                    server.due_s = monotonic() + HUNG_S

    def _begin_due(self, tasks: asyncio.TaskGroup) -> dict[str, _Server]:
        now_s = monotonic()
        due = {n: s for n, s in self._servers.items() if self._is_idle(n) and s.due_s <= now_s}
        for name, server in due.items():
            server.asked_s = now_s
            server.answered.clear()
            server.asking = tasks.create_task(self._ask(name, server), name=f"rpc server {name}")
        return due

    def _is_idle(self, name: str) -> bool:
        return name not in self._in_use and self._servers[name].asking is None

    def _idle_s(self, now_s: float) -> float:
        """Seconds until a server is due, or is taken to hang."""
        due_s = (s.due_s for name, s in self._servers.items() if self._is_idle(name))
        late_s = (s.asked_s + GRACE_S for s in self._servers.values() if s.asking)
        waits_s = (at_s - now_s for at_s in (*due_s, *late_s))
        return min((wait_s for wait_s in waits_s if wait_s > 0), default=ASK_EVERY_S)

    async def _ask(self, name: str, server: _Server) -> None:
        try:
            server.said = await greeting_of(name)
        except ServerSilent as silent:
            server.said = silent
        finally:
            server.asking, server.is_stale = None, False
            server.answered.set()
        is_costly = isinstance(server.said, ServerSilent) and server.said.is_costly
        server.due_s = monotonic() + (HUNG_S if is_costly else ASK_EVERY_S)
        self._poked.set()

    def _said(self, name: str) -> Said | None:
        """What counts now; None for a server that was only just asked for the first time."""
        server = self._servers[name]
        hangs = server.asking is not None and monotonic() - server.asked_s >= GRACE_S
        if hangs and name not in self._in_use:
            return ServerSilent(server=name, why=NO_WORD)
        return server.said

    def _gist(self, name: str) -> str:
        match self._said(name):
            case Greeting(protocol, devices):
                return f"{protocol} {len(devices)}"
            case ServerSilent() as silent:
                return silent.why
            case None:
                return ""

    async def _try_protocols(self) -> None:
        """Know of each engine whether it speaks what the servers speak."""
        now_s = monotonic()
        told = [server.said for server in self._servers.values()]
        for protocol in {said.protocol for said in told if isinstance(said, Greeting)}:
            for engine in tuple(self._engines.values()):
                known = self._trials.get((engine.path, protocol))
                if known is None or known.until_s <= now_s:
                    self._trials[engine.path, protocol] = await _tried(engine, protocol)

    def _remote(self) -> Remote:
        devices: list[Device] = []
        silents: list[ServerSilent] = []
        notes: list[Note] = []
        n_named = 0
        for name in self._servers:
            match self._usable(name):
                case ServerSilent() as silent:
                    silents.append(silent)
                    devices.append(_device(name))
                case None:
                    notes.append(_note(name, f"RPC server {name}: {JUST_ASKED}"))
                    devices.append(_device(name))
                case Greeting(protocol, memories):
                    backends = self._backends(protocol)
                    for index, memory in enumerate(memories):
                        names = tuple((b, f"{NAME_PREFIX}{n_named + index}") for b in backends)
                        devices.append(_device(name, index, memory, names=names))
                    n_named += len(memories)
        reasons = tuple((device_id(silent.server, 0), silent.why) for silent in silents)
        told = (_note(silent.server, str(silent)) for silent in silents)
        return Remote(tuple(devices), reasons, (*told, *notes))

    def _usable(self, name: str) -> Said | None:
        said = self._said(name)
        if not self._engines:
            return ServerSilent(server=name, why=NO_ENGINE)
        if isinstance(said, Greeting) and not self._backends(said.protocol):
            version = ".".join(map(str, said.protocol))
            why = f"it speaks RPC protocol {version}, which no engine here does"
            return ServerSilent(server=name, why=why)
        return said

    def _backends(self, protocol: Protocol) -> list[str]:
        """The backends whose engines speak it."""
        tried = {b: self._trials.get((e.path, protocol)) for b, e in self._engines.items()}
        return [backend for backend, trial in tried.items() if trial is not None and trial.speaks]


def _note(server: str, text: str) -> Note:
    return Note(NoteKind.SERVER, text, device_id(server, 0))


def _is_good(said: Said | None) -> bool:
    return isinstance(said, Greeting)


async def _answers(servers: Iterable[_Server], *, within_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            for server in servers:
                await server.answered.wait()


async def _tried(engine: Engine, protocol: Protocol) -> _Trial:
    try:
        return _Trial(await speaks(engine, protocol))
    except (SupervisorError, OSError) as exc:
        log.warning("rpc.protocol_untried", engine=engine.path, reason=str(exc))
        return _Trial(speaks=False, until_s=monotonic() + RETRY_S)


def _device(
    server: str,
    index: int = 0,
    memory: DeviceMemory | None = None,
    *,
    names: tuple[tuple[str, str], ...] = (),
) -> Device:
    return Device(
        device_id=device_id(server, index),
        kind=DeviceKind.REMOTE,
        name=f"RPC server {server}" if index == 0 else f"RPC server {server}, device {index}",
        engine_names=names,
        total_bytes=(memory.total_bytes or None) if memory else None,
        free_bytes=memory.free_bytes if memory else None,
    )
