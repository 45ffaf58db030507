"""An AdminService of one model, and its app on a real Unix socket while a block lasts."""

import asyncio
import math
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from planners.backends import Engine, RejectedEngine
from planners.hardware import (
    HOST,
    Device,
    DeviceId,
    DeviceKind,
    HardwareProfile,
    Host,
    Note,
    NoteKind,
)
from planners.instances.exits import Cause, ExitKind
from planners.layout.outlook import Outlook
from planners.layout.variants import Candidate
from planners.model import BrokenFile, ModelId, ServedModel
from planners.plan import DeviceBytes, InstanceId, Shortfall
from planners.profile_json import RecordedProfile, encode_profile
from planners.reasons import Price, Reason, ReasonKind, Unit, unused
from planners.recipe import Recipe
from planners.sizes import GIB, MIB
from planners.view import InstanceState
from proxy.admin.engines import BuildReport, EngineOrder, EnginesReport
from proxy.admin.models import ModelReport, ModelsReport
from proxy.admin.move_requests import MoveRequest, YieldRequest
from proxy.admin.moves import MoveReport, YieldReport, YieldsReport
from proxy.admin.orders import ForgetReport, LoadReport, ReloadReport, RetryReport, UnloadReport
from proxy.admin.records import EventReport, Followed, LogReport
from proxy.admin.routes import build_admin_app
from proxy.admin.service import ReloadRefused
from proxy.admin.status import DaemonReport, LockReport, StatusReport, status_report
from proxy.edge.server import serve
from proxy.errors import BadRequest, UnknownModel
from supervisor.engines.builds import Order
from supervisor.leases.lease import ModelUnavailable
from supervisor.moving.move import MoveFailed
from supervisor.store.errors import NameTaken, NotOurs, NotStored
from supervisor.store.names import StoreName
from supervisor.store.progress import Progress
from supervisor.store.pull_errors import NoSuchModel
from tests.fakes.fleet_of_one import launch_plan, served_model
from tests.fakes.instances import observed
from tests.fakes.machines import FLAGS, model_info, served

RECIPE = Recipe(parameters=(("temperature", 0.5),), system="Be brief.", licenses=("MIT\nmore",))
GPU = DeviceId("pci:0000:01:00.0")
STARTED_AT = 1_800_000_000.0
NOW_S = 1000.0

PLAN = replace(
    launch_plan(served_model(model_id="qwen", path="/models/qwen.gguf"), n_ctx=8192, n_parallel=2),
    backend="vulkan",
    engine_id="0123456789ab",
    devices=((GPU, "Vulkan0", 29),),
    n_batch=2048,
    n_gpu_layers=29,
    n_threads=8,
    predicted=(
        DeviceBytes(GPU, 4 * GIB, 512 * MIB, 256 * MIB, 128 * MIB),
        DeviceBytes(HOST, 300 * MIB, 0, 20 * MIB),
    ),
    reasons=(
        unused(DeviceId("vulkan:Vulkan1"), "llvmpipe", "it is the processor posing as a GPU"),
        Reason(ReasonKind.LAYERS, "29 of 41 layers on a card: 4.9 GiB of the 22.0 GiB it can give"),
        Reason(
            ReasonKind.LAYERS_ON_HOST,
            "12 of 41 layers on the processor: no room is left on a device",
            price=Price(Unit.DECODE, 40.0, 120.0),
        ),
        Reason(ReasonKind.SPEED, "predicted: 1200 tokens/s of prompt and 40 tokens/s of decode"),
    ),
)
READY = observed(
    PLAN,
    instance_id=InstanceId("i1"),
    launch_key="k",
    pid=4712,
    running=1,
    waiting=2,
    last_used_s=990.0,
    loaded_at=STARTED_AT + 60,
    load_s=3.5,
    measured=(DeviceBytes(GPU, 4 * GIB, 512 * MIB, 300 * MIB),),
    decode_tokens_per_s=85.25,
    prompt_tokens_per_s=1200.0,
)
FOREVER = replace(READY, running=0, waiting=0, keep_alive_s=math.inf, expires_at=math.inf)
"""READY, pinned and idle."""
CRASHED = replace(
    READY,
    instance_id=InstanceId("i2"),
    model_id=ModelId("phi"),
    state=InstanceState.BACKOFF,
    plan=replace(PLAN, backend="cpu", devices=(), n_ctx=4096, n_parallel=1, predicted=()),
    pid=None,
    running=0,
    waiting=0,
    measured=(),
    decode_tokens_per_s=None,
    prompt_tokens_per_s=None,
    restarts=2,
    cause=Cause(ExitKind.CRASH, "died of SIGSEGV", -11, ()),
    retry_at_s=NOW_S + 4,
)
HARDWARE = HardwareProfile(
    host=Host(64 * GIB, 48 * GIB, None, 16, 8, "AMD Ryzen 9 7950X"),
    devices=(
        Device(
            GPU,
            DeviceKind.DISCRETE,
            "NVIDIA GeForce RTX 4090",
            (("vulkan", "Vulkan0"), ("cuda", "CUDA0")),
            24 * GIB,
            19 * GIB,
            limit_bytes=22 * GIB,
        ),
        Device(
            DeviceId("vulkan:Vulkan1"),
            DeviceKind.SOFTWARE,
            "llvmpipe",
            (("vulkan", "Vulkan1"),),
            None,
            None,
            use=False,
        ),
    ),
    notes=(Note(NoteKind.DRIVER, "NVML: library not found"),),
)
ENGINE = Engine(
    "0123456789ab", "vulkan", "/opt/llama/llama-server", "config", (), frozenset(), (), "b11434"
)
OUTLOOK = Outlook(
    served=served(model_info(n_layer=40)),
    answer=PLAN,
    hardware=HARDWARE,
    engine=replace(ENGINE, flags=FLAGS),
    one_more_gib=("1 GiB more on host: 16384 rather than 8192 tokens of context",),
)
SHORTFALL = Shortfall(PLAN.model_id, {GPU: 3 * GIB}, "even 1 slot of 4096 tokens is too much")
PROFILE = encode_profile(RecordedProfile("recorded by a test", HARDWARE))
BUILD = BuildReport(
    backend="cpu",
    build_id="0c1e57098bba-0123456789ab",
    version="0.5.0-dev (build 0, commit 0c1e57098bba)",
    commit="0c1e57098bba43ac29e6e3b677cdceebdd22334f",
    built_at="2026-12-01T10:00:00Z",
    path="/var/lib/inferenceosd/engines/cpu/0c1e57098bba-0123456789ab/bin/llama-server",
    is_current=True,
    is_proven=False,
    is_pinned=False,
    is_used=True,
    is_on_trial=False,
    failed=None,
)
REJECTED = RejectedEngine("/usr/bin/llama-server", "path", "built for another CPU")
DAEMON = DaemonReport(
    version="0.1.0",
    pid=4711,
    started_at=STARTED_AT,
    listen="127.0.0.1:11434",
    config_file="/etc/inferenceosd/config.toml",
    state_dir="/var/lib/inferenceosd",
    lock=LockReport(
        keys=0,
        keys_file="/var/lib/inferenceosd/keys.json",
        is_open=False,
        tls_expires_at=None,
    ),
)
BROKEN = BrokenFile(
    "/models/lfs.gguf", "a git-lfs pointer, not a model: run git lfs pull", ("lfs",)
)
STATUS = status_report(
    DAEMON,
    instances=(READY, CRASHED),
    hardware=HARDWARE,
    engines=(ENGINE,),
    rejected=(REJECTED,),
    broken=(BROKEN,),
    now_s=NOW_S,
)
MODELS = ModelsReport(
    models=(
        ModelReport(
            model="qwen",
            aliases=("default",),
            path="/models/qwen.gguf",
            architecture="qwen2",
            quantization="Q4_K_M",
            n_params=7_615_616_512,
            size_bytes=4_683_074_240,
            n_ctx_train=32768,
            capabilities=("completion", "tools"),
            is_pinned=False,
            state="ready",
            warnings=("llama.rope.freq_base is missing: 10000 is assumed",),
            digest="0123456789abcdef",
            modified_at=STARTED_AT,
        ),
    ),
    broken=(BROKEN,),
    dirs=("/models",),
)
EVENTS = (
    EventReport(STARTED_AT, "instance.loading", "qwen", "i1", "asked for by 127.0.0.1", {}),
    EventReport(STARTED_AT + 3.5, "instance.ready", "qwen", "i1", "", {"load_s": 3.5}),
)


class OneModelService:
    """Knows "qwen", keeps what it was asked, and says no where told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.config_mistake: str | None = None
        self.unavailable: str | None = None
        self.fits = True
        self.machine = PROFILE
        self.is_over, self.has_ended = threading.Event(), threading.Event()

    def _known(self, name: str) -> None:
        if name != "qwen":
            raise UnknownModel(name)

    def status(self) -> StatusReport:
        return STATUS

    def metrics(self) -> bytes:
        return b"# EOF\n"

    def engines(self) -> EnginesReport:
        return EnginesReport((BUILD,))

    async def decide_engine(self, order: EngineOrder) -> EnginesReport:
        if order.build != BUILD.build_id:
            raise BadRequest(f"no build {order.build!r}", param="build")
        return EnginesReport((replace(BUILD, is_pinned=order.action is Order.PIN),))

    def models(self) -> ModelsReport:
        return MODELS

    def offered(self, name: str) -> ServedModel:
        self._known(name)
        return replace(served_model(model_id="qwen", path="/models/qwen.gguf"), recipe=RECIPE)

    async def pull(self, name: StoreName, *, insecure: bool) -> AsyncGenerator[Progress, None]:
        self.asked.append(("pull", name.short, insecure))
        if name.model == "taken":
            raise NameTaken(name.short, path="/models/taken.gguf", store="")
        yield Progress("pulling manifest")
        yield Progress("pulling 0123456789ab", "sha256:01", 1000, 10)
        if name.model == "none":
            raise NoSuchModel(name.short, host=name.host)
        yield Progress("pulling 0123456789ab", "sha256:01", 1000, 1000)
        yield Progress("success")

    async def fit(
        self, name: StoreName, *, context: int | None, hardware: HardwareProfile | None
    ) -> Sequence[Candidate]:
        self.asked.append(("fit", name.short, context, hardware))
        if name.model == "none":
            raise NoSuchModel(name.short, host=name.host)
        answer = PLAN if self.fits else SHORTFALL
        best = Candidate("Q8_0", "Q8_0", 8 * GIB, model_info(), answer, is_estimate=False)
        other = replace(best, tag="Q4_K_M", label="Q4_K_M", size_bytes=4 * GIB, is_estimate=True)
        return (best, other)

    async def copy(self, source: str, destination: StoreName) -> None:
        if source != "qwen":
            raise NotStored(source)
        self.asked.append(("copy", source, destination.short))

    async def delete(self, name: str) -> None:
        if name == "qwen":
            raise NotOurs(name, path="/models/qwen.gguf", store="")
        if name != "mine":
            raise NotStored(name)
        self.asked.append(("delete", name))

    async def plan(
        self,
        name: str,
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> Outlook:
        self._known(name)
        self.asked.append(("plan", name, context, parallel, hardware))
        return OUTLOOK if self.fits else replace(OUTLOOK, answer=SHORTFALL)

    async def plan_together(
        self,
        names: Sequence[str],
        *,
        context: int | None,
        parallel: int | None,
        hardware: HardwareProfile | None,
    ) -> Sequence[Outlook]:
        self.asked.append(("plans", tuple(names), context, parallel, hardware))
        return [
            await self.plan(name, context=context, parallel=parallel, hardware=hardware)
            for name in names
        ]

    async def profile(self) -> str:
        return self.machine

    async def load(self, name: str) -> LoadReport:
        self._known(name)
        if self.unavailable is not None:
            raise ModelUnavailable(
                model_id=ModelId(name), reason=self.unavailable, retry_after_s=4.2
            )
        return LoadReport("qwen", 3.5)

    def unload(self, name: str) -> UnloadReport:
        self._known(name)
        return UnloadReport("qwen", was_loaded=True, is_pinned=False)

    async def migrate(self, asked: MoveRequest) -> MoveReport:
        self._known(asked.model)
        asked.check()
        if asked.layers == 99:
            raise MoveFailed(model_id=ModelId(asked.model), reason="the other plan does not fit")
        return MoveReport(
            model=asked.model,
            order="make-before-break",
            streams=2,
            slots=3,
            moved_bytes=5 << 20,
            took_s=0.75,
            keeps_math=False,
            devices=(("rpc:127.0.0.1:50052", asked.layers or 0),) if asked.layers else (),
            context=asked.context or 4096,
            parallel=2,
        )

    async def yield_memory(self, asked: YieldRequest) -> YieldsReport:
        if asked.device == "nowhere":
            raise BadRequest("there is no device nowhere; there are: host", param="device")
        given = YieldReport(asked.device or "host", asked.n_bytes or 0, GIB, 3 * GIB, asked.for_s)
        return YieldsReport((given,))

    def retry(self, name: str) -> RetryReport:
        self._known(name)
        return RetryReport("qwen", had_failed=self.unavailable is not None)

    async def reload(self) -> ReloadReport:
        if self.config_mistake is not None:
            raise ReloadRefused(self.config_mistake)
        return ReloadReport(changed=("qwen restarts with context 8192",), needs_restart=())

    def read_lock(self) -> LockReport:
        assert DAEMON.lock is not None
        return DAEMON.lock

    async def log_lines(self, name: str, *, tail: int) -> LogReport:
        self._known(name)
        return LogReport("qwen", ("one", "two", "three")[-tail:])

    async def follow_log(self, name: str, *, tail: int) -> AsyncIterator[Followed]:
        self._known(name)
        return self._told(*(Followed(line=line) for line in ("one", "two", "three")[-tail:]))

    async def events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> Sequence[EventReport]:
        self.asked.append(("events", name, since_s, limit))
        return EVENTS[-limit:]

    async def follow_events(
        self, *, name: str | None, since_s: float | None, limit: int
    ) -> AsyncIterator[Followed]:
        self.asked.append(("follow", name, since_s, limit))
        return self._told(*(Followed(event) for event in EVENTS[-limit:]))

    async def _told(self, *values: Followed) -> AsyncIterator[Followed]:
        """The values, a gap and a sign of life; then it goes on for as long as it may."""
        try:
            for value in (*values, Followed(skipped=7), Followed()):
                yield value
            while not self.is_over.is_set():
                await asyncio.sleep(0.02)
                yield Followed()
        finally:
            self.has_ended.set()

    async def forget(self, *, name: str | None, device: str | None) -> ForgetReport:
        self.asked.append(("forget", name, device))
        return ForgetReport(name or device or "all", 3, 17)


@contextmanager
def admin_socket(service: OneModelService) -> Iterator[Path]:
    """The socket on which `service` is served, by the real server in a thread of its own."""
    with TemporaryDirectory(prefix="admin-") as folder:  # short: a socket's path has 107 bytes
        yield from _served(service, Path(folder) / "admin.sock")


def _served(service: OneModelService, path: Path) -> Iterator[Path]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(16)
    serving = _Serving(service, listener)
    thread = threading.Thread(target=serving.run, name="admin-server")
    thread.start()
    try:
        assert serving.is_up.wait(10)
        yield path
    finally:
        serving.end()
        thread.join(10)
        listener.close()
    assert not thread.is_alive()


class _Serving:
    """An event loop in a thread, from its start to a told end."""

    def __init__(self, service: OneModelService, listener: socket.socket) -> None:
        self._service, self._listener = service, listener
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self.is_up = threading.Event()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        started = asyncio.Event()
        app = build_admin_app(self._service)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                serve(app, (self._listener,), stop=self._stop, started=started, drain_s=lambda: 1.0)
            )
            await started.wait()
            self.is_up.set()
