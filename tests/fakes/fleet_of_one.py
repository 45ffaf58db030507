"""The least Service: one model, one child, started when asked for and again when it died."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from planners.lessons.usage import Usage
from planners.model import BrokenFile, ModelId, ModelInfo, ServedModel
from planners.plan import InstanceId, LaunchPlan
from planners.view import LineSeen, Observed
from planners.waiting.line import Priority
from supervisor.leases.lease import Lease, LeaseError
from tests.fakes.instances import observed
from tests.fakes.machines import PLAIN

FAKE = (sys.executable, str(Path(__file__).with_name("llama_server.py")))
"""argv of the fake engine."""

START_S = 60.0
LINE_BYTES = 64 << 20  # of the log: a reader that gives up on one stops its writer for good


def model_info(
    *, chat_template: str | None = "{{ messages }}", pooling: str | None = None
) -> ModelInfo:
    """A small text model's facts."""
    return ModelInfo(
        digest="ab" * 32,
        architecture="llama",
        name="Tiny",
        quantization="Q4_1",
        n_params=134_515_008,
        n_ctx_train=8192,
        n_embd=576,
        n_vocab=49152,
        n_expert=0,
        n_expert_used=0,
        sliding_window=0,
        layers=(),
        input_bytes=0,
        output_bytes=0,
        is_causal=pooling is None,
        pooling=pooling,
        chat_template=chat_template,
        has_vision=False,
        metadata=(
            ("general.architecture", "llama"),
            ("general.name", "Tiny"),
            ("llama.context_length", 8192),
            ("tokenizer.ggml.tokens", None),
        ),
        file_bytes=98_362_432,
    )


def served_model(
    *, model_id: str = "tiny", path: str = "", info: ModelInfo | None = None
) -> ServedModel:
    """A model as the catalogue would offer it."""
    return ServedModel(
        model_id=ModelId(model_id),
        aliases=(),
        path=path,
        info=info or model_info(),
        settings=PLAIN,
        size_bytes=98_362_432,
        modified_at=1_700_000_000.0,
        file_key="1",
    )


def launch_plan(model: ServedModel, *, n_ctx: int, n_parallel: int) -> LaunchPlan:
    """The plan of a CPU launch."""
    return LaunchPlan(
        model_id=model.model_id,
        model_path=model.path,
        model_digest=model.info.digest,
        file_key=model.file_key,
        backend="cpu",
        engine_id="fake",
        devices=(),
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        n_batch=512,
        n_ubatch=512,
        n_gpu_layers=0,
        n_threads=2,
        type_k="f16",
        type_v="f16",
        flash_attn=True,
        cache_ram_mib=0,
        ctx_checkpoints=0,
        embedding=model.info.is_embedding,
        mmproj_path=None,
        draft_path=None,
        lora_paths=(),
        extra_flags=(),
        predicted=(),
        reasons=(),
    )


@dataclass
class Child:
    """A running engine."""

    process: asyncio.subprocess.Process
    socket_path: str
    log: list[str] = field(default_factory=list)


class FleetOfOne:
    """Serves `model` with one child at a time; slots are handed out in order of asking."""

    def __init__(
        self,
        model: ServedModel,
        folder: Path,
        *,
        argv: Sequence[str] = FAKE,
        faults: Mapping[str, object] | None = None,
        n_ctx: int = 4096,
        n_parallel: int = 1,
    ) -> None:
        self.model = model
        self.child: Child | None = None
        self.launches = 0
        self.leases = 0
        self.answers = 0
        self.most_leases = 0
        self.departures = 0
        """Leases that were given back before what they were for was done."""
        self.usages: list[Usage] = []
        self.contexts: list[int | None] = []
        """What each lease and load was asked for with."""
        self.keep_alive_s: float | None = None
        self.refusals: Iterator[LeaseError] = iter(())
        """What the next callers get instead of a lease, one each."""
        self._folder, self._faults = folder, dict(faults or {})
        self.argv = tuple(argv)
        """Of its next child, before what a launch adds."""
        self._n_ctx, self._n_parallel = n_ctx, n_parallel
        self._launch: asyncio.Task[Child] | None = None
        self.plan = launch_plan(model, n_ctx=n_ctx, n_parallel=n_parallel)
        self.resumptions: list[tuple[str, int]] = []
        """Ways in which replies went on after a child's loss, and tokens computed again."""
        self.why_moved: str | None = None
        """Why each child that ends made way for another; None where it did not."""
        self._free = asyncio.PriorityQueue[int]()
        for slot in range(n_parallel):
            self._free.put_nowait(slot)
        self._readers: set[asyncio.Task[None]] = set()

    # what proxy.service.Service asks for

    def resolve(self, name: str) -> ServedModel | None:
        wanted = name.lower().removesuffix(":latest")
        return self.model if wanted == self.model.model_id.lower() else None

    def offered(self, name: str) -> ServedModel | None:
        return self.resolve(name)

    def models(self) -> Sequence[ServedModel]:
        return (self.model,)

    def broken(self) -> Sequence[BrokenFile]:
        return ()

    def running(self) -> Sequence[Observed]:
        if self.child is None:
            return ()
        keep_alive_s = (
            self.model.settings.keep_alive_s if self.keep_alive_s is None else self.keep_alive_s
        )
        return (
            observed(
                self.plan,
                instance_id=InstanceId("tiny-1"),
                pid=self.child.process.pid,
                running=self.leases,
                keep_alive_s=keep_alive_s,
                expires_at=time.time() + keep_alive_s,
            ),
        )

    def lines(self) -> Sequence[LineSeen]:
        return ()

    @asynccontextmanager
    async def lease(
        self,
        model_id: ModelId,
        *,
        caller: str,
        keep_alive_s: float | None = None,
        context: int | None = None,
        priority: Priority = Priority.HIGH,
        takes_slot: bool = True,
        can_pause: bool = True,
        after: Lease | None = None,
    ) -> AsyncIterator[Lease]:
        if (refusal := next(self.refusals, None)) is not None:
            raise refusal
        self.contexts.append(context)
        child = await self._ready()
        self.keep_alive_s = self.keep_alive_s if keep_alive_s is None else keep_alive_s
        slot = await self._free.get() if takes_slot else -1
        self.leases += 1
        self.most_leases = max(self.most_leases, self.leases)
        try:
            yield Lease(
                instance_id=InstanceId("tiny-1"),
                model_id=model_id,
                slot=slot,
                socket_path=child.socket_path,
                context=self._n_ctx // self._n_parallel,
                embedding=self.model.info.is_embedding,
                load_s=0.0,
                granted_at_s=time.monotonic(),
                plan=self.plan,
            )
        except BaseException:
            self.departures += 1
            raise
        finally:
            self.leases -= 1
            if takes_slot:
                self._free.put_nowait(slot)

    async def until_gone(self, lease: Lease, *, within_s: float) -> str | None:
        child = self.child
        if child is not None and child.socket_path == lease.socket_path:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    return f"its process ended with {await child.process.wait()}"
        return None

    def blames_engine(self, lease: Lease) -> bool:
        return False

    def crashed_alone(self, lease: Lease) -> bool:
        child = self.child
        is_its = child is not None and child.socket_path == lease.socket_path
        code = child.process.returncode if child is not None and is_its else None
        return code == -signal.SIGSEGV and self.leases == 1

    def moved(self, lease: Lease) -> str | None:
        return self.why_moved

    def answered(self, lease: Lease) -> None:
        self.answers += 1

    def resumed(
        self, lease: Lease, *, cause: str, way: str, pause_s: float, n_computed: int
    ) -> None:
        self.resumptions.append((way, n_computed))

    def report(self, lease: Lease, usage: Usage) -> None:
        self.usages.append(usage)

    async def load(
        self, model_id: ModelId, *, keep_alive_s: float | None = None, context: int | None = None
    ) -> float:
        self.contexts.append(context)
        began_s = time.monotonic()
        self.keep_alive_s = self.keep_alive_s if keep_alive_s is None else keep_alive_s
        await self._ready()
        return time.monotonic() - began_s

    def unload(self, model_id: ModelId) -> bool:
        child, self.child = self.child, None
        if child is not None and child.process.returncode is None:
            child.process.kill()
        return child is not None

    # what tests ask for

    def kill(self) -> None:
        """SIGKILLs the child; the fleet learns of it a moment later, as a real one does."""
        assert self.child is not None
        self.child.process.kill()

    async def stop(self) -> None:
        """Ends the child, and all that watches it, also where its launch failed: uvloop waits for
        good for a child that outlives it, and no time limit of a test ends that."""
        try:
            if self._launch is not None:
                await self._launch
        finally:
            self.unload(self.model.model_id)
            for reader in tuple(self._readers):
                await reader

    def log(self, part: str) -> list[str]:
        """The child's log lines that have `part` in them."""
        assert self.child is not None
        return [line for line in self.child.log if part in line]

    async def slots(self) -> list[bool]:
        """Which of the child's slots are at work, by its own account."""
        assert self.child is not None
        reader, writer = await asyncio.open_unix_connection(self.child.socket_path)
        writer.write(b"GET /slots HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.startswith(b"Content-Length")
            )
            body = await reader.readexactly(size)
        writer.close()
        told = msgspec.json.decode(body)  # an error object while it loads, when no slot works
        return [bool(slot["is_processing"]) for slot in told] if isinstance(told, list) else []

    async def _ready(self) -> Child:
        """The child; a launch that began goes on when its caller leaves."""
        if self._launch is None and (
            self.child is None or self.child.process.returncode is not None
        ):
            self._launch = asyncio.get_running_loop().create_task(self._launched())
        if self._launch is not None:
            await asyncio.shield(self._launch)
            self._launch = None
        assert self.child is not None
        return self.child

    async def _launched(self) -> Child:
        self.launches += 1
        socket_path = str(self._folder / f"{self.launches}.sock")
        flags = (
            "-m",
            self.model.path,
            "--host",
            socket_path,
            "--alias",
            self.model.model_id,
            "-c",
            str(self._n_ctx),
            "-np",
            str(self._n_parallel),
        )
        faults = (
            ("--fake-faults", msgspec.json.encode(self._faults).decode()) if self._faults else ()
        )
        process = await asyncio.create_subprocess_exec(
            *self.argv,
            *flags,
            *faults,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
        )
        child = self.child = Child(process, socket_path)
        ready = asyncio.Event()
        reader = asyncio.get_running_loop().create_task(_read_log(child, ready))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        async with asyncio.timeout(START_S):
            await ready.wait()
        return child


async def _read_log(child: Child, ready: asyncio.Event) -> None:
    """Keeps the log; tells when the child is ready, or gone."""
    assert child.process.stderr is not None
    async for line in child.process.stderr:
        child.log.append(line.decode(errors="replace"))
        if b"model loaded" in line:
            ready.set()
    await child.process.wait()
    ready.set()


@asynccontextmanager
async def fleet_of_one(
    folder: Path,
    *,
    model: ServedModel | None = None,
    argv: Sequence[str] = FAKE,
    faults: Mapping[str, object] | None = None,
    n_ctx: int = 4096,
    n_parallel: int = 1,
) -> AsyncIterator[FleetOfOne]:
    """A fleet whose child is gone when the block ends."""
    if model is None:
        (folder / "tiny.gguf").touch()
        model = served_model(path=str(folder / "tiny.gguf"))
    fleet = FleetOfOne(model, folder, argv=argv, faults=faults, n_ctx=n_ctx, n_parallel=n_parallel)
    try:
        yield fleet
    finally:
        await fleet.stop()
