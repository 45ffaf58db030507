"""Tries one llama-server: does it start, which flags and devices does it know, does it decode,
save slots, speak the child protocol, and how does it log?

Neither --version nor --list-devices proves anything: a binary built for another CPU answers both
and dies of SIGILL on its first product. So the proof is a real decode of a tiny model, in a child
with a time limit.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import msgspec
from msgspec.structs import replace

from planners.argv import VERBOSITY, child_env
from planners.backends import Engine, EngineDevice, LogDialect
from planners.graph.buffers import TILES, parse_buffer_line
from planners.sizes import MIB
from supervisor.children.child import Child, running
from supervisor.children.child_logs import STAMPED
from supervisor.children.llama import client_of, is_healthy, parse_state
from supervisor.engines.scratch import scratch_folder
from supervisor.engines.tinymodel import N_CTX, tiny_model
from supervisor.errors import SupervisorError

MAX_LINES = 5000  # --help of today's builds has 700
MAX_REPLY_BYTES = 1 << 16
STOP_S = 0.0  # SIGKILL at once: nothing to save, and in the child protocol SIGTERM hangs
POLL_S = 0.03  # cadence of /health while the tiny model loads: 0.1 s on most machines

SOCKET, SLOTS = "engine.sock", "slots"  # in a trial's folder
_SLOT_FILE = "tried.bin"
_FLAG_LINE = re.compile(r"--?[A-Za-z][\w-]*(?:,\s+--?[A-Za-z][\w-]*)*")
_LEVEL_LINE = re.compile(r"\s+- (\d): (\w+).*")
_DEVICE_LINE = re.compile(r"\s+(\w+): (.*) \((\d+) MiB, (\d+) MiB free\)\s*")
_VERSION_LINE = re.compile(r"version: (\S.*?)\s*")
_MISSING_LIBRARY = re.compile(
    r"error while loading shared libraries: ([^:]+): cannot open|Library not loaded: (\S+)"
)
_OLD_LIBRARY = re.compile(r"version `([A-Z]+_[\d.]+)' not found")
_NOT_EXECUTED = re.compile(r"setpriv: failed to execute .*: (.+)")
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")  # one architecture, or several
_PACKAGES = {
    "libgomp.so.1": "apt install libgomp1",
    "libstdc++.so.6": "apt install libstdc++6",
    "libvulkan.so.1": "apt install libvulkan1",
    "libssl.so.3": "apt install libssl3",
    "libcurl.so.4": "apt install libcurl4",
    "libcuda.so.1": "install NVIDIA's driver",
}


class TrialLimits(msgspec.Struct, frozen=True):
    """How long each question may take, in seconds."""

    ask_s: float = 10.0
    """--version, --help and --list-devices: the last loads every driver."""
    decode_s: float = 60.0
    """Start to answer: 0.2 s on two idle cores, some seconds on a machine that is busy or slow."""


class Abilities(msgspec.Struct, frozen=True):
    """What a binary is, whatever the drivers and devices of the day."""

    version: str
    flags: frozenset[str]
    has_tiles: bool = False
    """Whether it computes with tiles (AMX) on this processor."""
    log: LogDialect = LogDialect()
    saves_slots: bool = False
    """Whether it wrote a slot to a file and read it back."""
    speaks_child_protocol: bool = False
    """Whether it told a state while it loaded."""


class TrialFailed(SupervisorError):
    """A llama-server that cannot serve here."""

    def __init__(self, *, path: str, reason: str, lasting: bool = False) -> None:
        self.path, self.reason = path, reason
        self.lasting = lasting
        """True where the same file on the same CPU can only fail again."""
        super().__init__(f"{path}: {reason}")


def refuse_foreign(path: str) -> None:
    """Raise TrialFailed for what this machine cannot execute; OSError where it cannot be read.

    Left to execvp, a program of another architecture would be run by /bin/sh, as a script.
    """
    if not os.path.isfile(path):
        raise TrialFailed(path=path, reason="there is no such file")
    if not os.access(path, os.X_OK):
        raise TrialFailed(path=path, reason=f"is not executable: chmod +x {path}")
    kind, ours = _program_kind(path), _program_kind(sys.executable)
    if kind not in (ours, b"#!"):
        raise TrialFailed(path=path, reason="built for another kind of machine, or no program")


async def try_engine(engine: Engine, *, limits: TrialLimits) -> Abilities:
    """What the binary at `engine.path` can do, once it has decoded. Raises TrialFailed."""
    version = parse_version(await _ask(engine, "--version", limit_s=limits.ask_s))
    told = await _ask(engine, "--help", limit_s=limits.ask_s)
    flags = parse_flags(told)
    if not {"--model", "--host"} <= flags:
        raise TrialFailed(path=engine.path, reason="its --help is not that of a llama-server")
    log = parse_log_levels(told)
    said, saves_slots = await _decode(engine, flags, log, limit_s=limits.decode_s)
    return Abilities(
        version=version,
        flags=flags,
        has_tiles=has_tiles(said),
        log=replace(log, has_stamps=any(map(STAMPED.match, said))),
        saves_slots=saves_slots,
        speaks_child_protocol=any(map(parse_state, said)),
    )


async def list_devices(
    engine: Engine, *, limit_s: float, rpc_server: str | None = None
) -> tuple[EngineDevice, ...]:
    """The devices the engine sees at this moment; () means CPU only. Raises TrialFailed.

    Those of `rpc_server`, HOST:PORT, come before its own. Not for a real ggml-rpc-server: an engine
    that is killed in its queue ends it (see supervisor.devices.rpc_protocol).
    """
    rpc = () if rpc_server is None else ("--rpc", rpc_server)
    return parse_devices(await _ask(engine, *rpc, "--list-devices", limit_s=limit_s))


def parse_version(lines: Iterable[str]) -> str:
    """E.g. "0.5.0-dev (build 9999, commit deadbee)"; "unknown" where there is none."""
    matches = (_VERSION_LINE.fullmatch(line) for line in lines)
    return next((match[1] for match in matches if match), "unknown")


def parse_flags(lines: Iterable[str]) -> frozenset[str]:
    """Every option that a --help names at the start of a line, short and long forms alike."""
    starts = (_FLAG_LINE.match(line) for line in lines)
    return frozenset(flag for match in starts if match for flag in re.split(r",\s+", match[0]))


def parse_log_levels(lines: Iterable[str]) -> LogDialect:
    """The verbosities to read an engine's log at, by the levels that its --help lists.

    llama.cpp common/arg.cpp: since b10434 "4: trace", "5: debug" (buffers are traced); before it
    "3: info", "4: debug"; before that a bare number, where 0 showed all but debug lines.
    """
    levels: dict[str, int] = {}
    is_listing = False
    for line in lines:
        if flags := _FLAG_LINE.match(line):
            is_listing = not {*VERBOSITY}.isdisjoint(re.split(r",\s+", flags[0]))
        elif is_listing and (level := _LEVEL_LINE.fullmatch(line)):
            levels[level[2]] = int(level[1])
    buffers = levels.get("trace", levels.get("info", 0))
    return LogDialect(buffers, levels.get("debug", buffers + 1))


def parse_devices(lines: Iterable[str]) -> tuple[EngineDevice, ...]:
    """The devices of a --list-devices, in its order."""
    matches = (_DEVICE_LINE.fullmatch(line) for line in lines)
    return tuple(
        EngineDevice(
            name=match[1],
            description=match[2],
            total_bytes=int(match[3]) * MIB,
            free_bytes=int(match[4]) * MIB,
        )
        for match in matches
        if match
    )


def has_tiles(lines: Iterable[str]) -> bool:
    """Whether an engine that loads says so: `load_tensors: AMX model buffer size = 0.58 MiB`."""
    return any((told := parse_buffer_line(line)) and told.device == TILES for line in lines)


def why_it_ended(
    returncode: int | None, log_tail: Sequence[str], *, doing: str
) -> tuple[str, bool]:
    """The reason of an exit, as a clause for operators, and whether it can only happen again."""
    log = "\n".join(log_tail)
    if match := _MISSING_LIBRARY.search(log):
        library = match[1] or match[2]
        remedy = _PACKAGES.get(library, "install the package that provides it")
        return f"needs {library}, which is not installed: {remedy}", False
    if match := _OLD_LIBRARY.search(log):
        return f"needs a newer system ({match[1]} is missing)", False
    if match := _NOT_EXECUTED.search(log):
        return _why_it_did_not_start(match[1]), False
    if returncode in (-signal.SIGILL, 128 + signal.SIGILL):
        return f"built for another CPU (SIGILL on {doing})", True
    last = next((line.strip() for line in reversed(log_tail) if line.strip()), "no message")
    return f"ended with {_spoken(returncode)} on {doing}: {last}", False


async def _ask(engine: Engine, *flags: str, limit_s: float) -> tuple[str, ...]:
    """All lines the engine answers `flags` with, on either stream."""
    with _private_folder() as folder:
        async with _tried(engine, (engine.path, *flags), folder=folder) as (child, said):
            try:
                async with asyncio.timeout(limit_s):
                    await child.wait()
            except TimeoutError as exc:
                reason = f"gave no answer to {flags[-1]} within {limit_s:g} s"
                raise TrialFailed(path=engine.path, reason=reason) from exc
            if child.returncode != 0:
                raise _ended(engine, child, doing=flags[-1])
            return tuple(said.lines)


async def _decode(
    engine: Engine, flags: frozenset[str], log: LogDialect, *, limit_s: float
) -> tuple[tuple[str, ...], bool]:
    """Two tokens of the tiny model on the CPU: what the engine said meanwhile, and whether it
    saved and restored the slot after that.
    """
    with _private_folder() as folder:
        (folder / "tiny.gguf").write_bytes(tiny_model())
        argv = _decode_argv(engine, flags, log, folder=folder)
        async with _tried(engine, argv, folder=folder) as (child, said):
            try:
                async with asyncio.timeout(limit_s):
                    saves_slots = await _complete(engine, child, folder)
            except TimeoutError as exc:
                reason = f"did not decode within {limit_s:g} s"
                raise TrialFailed(path=engine.path, reason=reason) from exc
            return tuple(said.lines), saves_slots


def _decode_argv(
    engine: Engine, flags: frozenset[str], log: LogDialect, *, folder: Path
) -> tuple[str, ...]:
    # Not planners.argv: there is no plan yet, and a build of any age must be askable.
    verbosity = next((name for name in VERBOSITY if name in flags), VERBOSITY[0])
    wanted = (
        ("--model", str(folder / "tiny.gguf")),
        ("--host", str(folder / SOCKET)),
        ("--ctx-size", str(N_CTX)),
        ("--threads", "1"),
        ("--parallel", "1"),
        ("--device", "none"),
        ("--fit", "off"),
        ("--cache-ram", "0"),
        ("--slot-save-path", str(folder / SLOTS)),
        (verbosity, str(log.buffers_verbosity)),  # else it says nothing of its buffers
        ("--log-prefix",),
        ("--log-timestamps",),
    )
    return (engine.path, *(part for flag in wanted if flag[0] in flags for part in flag))


async def _complete(engine: Engine, child: Child, folder: Path) -> bool:
    """Return once it has decoded: whether it saves slots, too. Raises TrialFailed."""
    async with client_of(str(folder / SOCKET), timeout_s=None) as client:  # the caller's limit
        try:
            await _until_ready(engine, child, client)
            status, body = await _post_completion(client)
        except httpx.TransportError as exc:
            await child.wait()  # under the caller's time limit
            raise _ended(engine, child, doing="its first decode") from exc
        if status != httpx.codes.OK or not _decoded(body):
            told = body[:200].decode(errors="replace")
            raise TrialFailed(
                path=engine.path, reason=f"answered its first prompt with {status}: {told}"
            )
        try:
            return await _saves_slot(client, folder / SLOTS)
        except httpx.TransportError:
            return False  # it died of it: without a folder for slots it is never asked to


async def _saves_slot(client: httpx.AsyncClient, folder: Path) -> bool:
    """Whether what it decoded can be written to a file and read again. Raises TransportError."""
    for action in ("save", "restore"):
        told = {"filename": _SLOT_FILE}
        async with client.stream("POST", f"/slots/0?action={action}", json=told) as reply:
            if reply.status_code != httpx.codes.OK:
                return False
    return (folder / _SLOT_FILE).is_file()


async def _until_ready(engine: Engine, child: Child, client: httpx.AsyncClient) -> None:
    while child.returncode is None:
        if await is_healthy(client):
            return
        await asyncio.sleep(POLL_S)
    raise _ended(engine, child, doing="its first start")


async def _post_completion(client: httpx.AsyncClient) -> tuple[int, bytes]:
    # The grammar keeps random weights to letters: any other byte would be answered with HTTP 500.
    question = {"prompt": "Hi", "n_predict": 2, "grammar": "root ::= [a-z]*"}
    body = b""
    async with client.stream("POST", "/completion", json=question) as reply:
        async for chunk in reply.aiter_raw():
            body += chunk
            if len(body) > MAX_REPLY_BYTES:
                break
        return reply.status_code, body


def _decoded(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Completion).tokens_predicted > 0
    except msgspec.DecodeError:
        return False


def _ended(engine: Engine, child: Child, *, doing: str) -> TrialFailed:
    reason, lasting = why_it_ended(child.returncode, child.log.last(20), doing=doing)
    return TrialFailed(path=engine.path, reason=reason, lasting=lasting)


class _Completion(msgspec.Struct):
    tokens_predicted: int = 0


class _Said:
    """What a child on trial says; past a bound it is killed, since a flood would fill our loop."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.child: Child | None = None
        self.flooded = False

    def take(self, line: str) -> None:
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)
            return
        self.flooded = True
        if self.child is not None and self.child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)


@asynccontextmanager
async def _tried(
    engine: Engine, argv: Sequence[str], *, folder: Path
) -> AsyncIterator[tuple[Child, _Said]]:
    """A child of `engine`, ended with the block. A flood outranks every other reason."""
    said = _Said()
    async with running(
        argv,
        env=child_env(engine, os.environ),
        cwd=str(folder / "cwd"),
        stop_s=STOP_S,
        on_stdout=said.take,
        on_stderr=said.take,
    ) as child:
        said.child = child
        try:
            yield child, said
        except TrialFailed as exc:
            if not said.flooded:
                raise
            raise TrialFailed(
                path=engine.path, reason=f"wrote more than {MAX_LINES} lines and was stopped"
            ) from exc


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A 0700 folder with a read-only `cwd`: llama-server loads every backend it finds there."""
    with scratch_folder() as folder:
        (folder / "cwd").mkdir(mode=0o500)
        (folder / SLOTS).mkdir()
        yield folder


def _program_kind(path: str) -> bytes:
    """Equal for programs of one kind of machine: format, word size and architecture."""
    with open(path, "rb") as file:
        head = file.read(20)
    if head.startswith(b"#!"):
        return b"#!"
    if head.startswith(b"\x7fELF"):
        return head[:6] + head[18:20]  # magic, class and byte order, e_machine
    return b"Mach-O" if head[:4] in _MACH_O else head[:4]


def _why_it_did_not_start(why: str) -> str:
    if "Exec format" in why:
        return f"built for another kind of machine, or no program at all ({why})"
    if "No such file" in why:
        return "cannot start: its loader or interpreter is not installed"
    return f"cannot start: {why}"


def _spoken(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        with suppress(ValueError):  # a number this Python has no name for
            return signal.Signals(-returncode).name
    return f"code {returncode}"
