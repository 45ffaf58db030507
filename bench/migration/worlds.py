"""Daemons whose one model can be moved: on the processor, over RPC servers, on software Vulkan."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from bench.migration.questions import Event
from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir
from tests.fakes.chat_templates import HERMES, with_template
from tests.fakes.rpc_servers import rpc_server
from tests.fakes.tiny_models import tiny_models, write

Options = Mapping[str, Any]
"""Of one /migrate: what of the launch is to be another."""
SLOTS = 8
SHIFTS: tuple[Options, ...] = (
    {"context": 768},
    {"parallel": 10},
    {"context": 512},
    {"parallel": 6},
    {"context": 1024},
    {"parallel": 8},
)
"""Context and slots, on the processor."""
RESIZES: tuple[Options, ...] = ({"context": 768}, {"context": 1024})
"""Context alone: of four slots llama-server b10434 died of a SIGSEGV on a small recurrent model."""
CONTEXT = 1024
TIGHT = 1.1  # of what one process takes: it ends before the next one loads, weights shared or not
VULKAN = '[devices."Vulkan0"]\nuse = true\n'
VULKAN_LAYERS = 4  # of 31: it is many times slower than the processor that it runs on
VULKAN_ENVIRON = {"GGML_VK_VISIBLE_DEVICES": "0", "LP_NUM_THREADS": "1"}
"""On two cores a second thread of the driver only waits for the first."""


@dataclass(frozen=True, slots=True)
class World:
    """A running daemon with one model, which is loaded."""

    daemon: StartedDaemon
    model: str
    moves: tuple[Options, ...]
    """That come in turn."""

    @property
    def base(self) -> str:
        """Its public address."""
        return self.daemon.base

    def ready(self) -> list[dict[str, Any]]:
        """Instances that serve, as `inferenceosctl status --json` has them."""
        told = self.daemon.status()["instances"]
        return [each for each in told if each["state"] == "ready" and each["pid"]]

    def move(self, wanted: Options) -> None:
        """Has the model run like that. Raises AssertionError where it was not moved.

        At the admin door itself: a program that is started for it comes seconds later on a busy
        machine, when streams may have ended.
        """
        transport = httpx.HTTPTransport(uds=str(self.daemon.admin_socket))
        with httpx.Client(transport=transport, base_url="http://admin", timeout=300) as client:
            reply = client.post("/migrate", json={"model": self.model, **wanted})
        is_so = "runs like that already" in reply.text
        assert reply.status_code == 200 or is_so, reply.text

    def resumed(self, *, since: float) -> list[Event]:
        """What the daemon's log tells of streams that went on, from a moment on, UTC seconds."""
        return [each for each in self._logged("stream.resumed") if _at(each) >= since]

    def orders(self, *, since: float) -> list[str]:
        """Of the moves that began since then."""
        begun = (each for each in self._logged("migration.begun") if _at(each) >= since)
        return [str(each["order"]) for each in begun]

    def _logged(self, kind: str) -> list[Event]:
        lines = (line for line in self.daemon.log().splitlines() if f'"{kind}"' in line)
        told = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in told if each["event"] == kind]

    def n_tokens(self, text: str) -> int:
        """Of a text, by the model's tokenizer."""
        asked = {"model": self.model, "content": text}
        reply = httpx.post(f"{self.base}/tokenize", json=asked, timeout=60, trust_env=False)
        return len(reply.raise_for_status().json()["tokens"])


def _at(event: Event) -> float:
    """UTC seconds."""
    return datetime.fromisoformat(str(event["timestamp"])).timestamp()


def config_text(model: Path, *, slots: int, context: int, more: str = "") -> str:
    """One model, in so many slots, whose process may die as often as it likes."""
    return (
        f'[fleet]\nrestart_limit = 1000\n{more}\n[[model]]\nname = "m"\npath = "{model}"\n'
        f"parallel = {slots}\ncontext = {context}\n"
    )


@contextmanager
def _running(
    held: ExitStack,
    model: Path,
    moves: tuple[Options, ...],
    *,
    more: str = "",
    environ: Mapping[str, str] | None = None,
    slots: int = SLOTS,
    has_room: bool = False,
) -> Iterator[World]:
    """`has_room`: for two processes beside each other."""
    folder = held.enter_context(_folder())
    config = config_text(model, slots=slots, context=CONTEXT, more=more)
    daemon = held.enter_context(
        started_daemon(folder, model_dirs=(), config=config, environ=environ)
    )
    daemon.wait_for_engines()
    if not has_room:
        _tighten(daemon, config)
    told = daemon.ctl("load", "m")
    assert told.returncode == 0, told.stderr
    yield World(daemon, "m", moves)


def _tighten(daemon: StartedDaemon, config: str) -> None:
    """Limits the host's memory to less than two processes of its model take."""
    planned = json.loads(daemon.ctl("plan", "m", "--json").stdout)
    (host,) = [each for each in planned["places"] if each["device"] == "host"]
    limit = f'[memory]\nlimit = "{int(TIGHT * host["total_bytes"]) >> 20}MiB"\nreserve = "0"\n'
    (daemon.folder / "config.toml").write_text(limit + config)
    told = daemon.ctl("reload")
    assert told.returncode == 0, told.stderr


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ios-bench-") as folder:
        yield Path(folder)


def _hermes(held: ExitStack) -> Path:
    """The quickstart model, under a template that knows tools."""
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    (model,) = model_dir.glob("*.gguf")
    return with_template(model, HERMES, held.enter_context(_folder()) / "hermes.gguf")


@contextmanager
def on_the_processor() -> Iterator[World]:
    """Eight slots, between contexts and numbers of slots; one process at a time."""
    with ExitStack() as held, _running(held, _hermes(held), SHIFTS) as world:
        yield world


@contextmanager
def side_by_side() -> Iterator[World]:
    """The same, where the next process loads while the last one serves."""
    with ExitStack() as held, _running(held, _hermes(held), SHIFTS, has_room=True) as world:
        yield world


@contextmanager
def with_spare_slots() -> Iterator[World]:
    """Six slots, so that a conversation keeps its own beside streams and late callers."""
    with ExitStack() as held, _running(held, _hermes(held), RESIZES, slots=6) as world:
        yield world


@contextmanager
def over_servers() -> Iterator[World]:
    """Between two and three loopback RPC servers, in changing shares."""
    with ExitStack() as held:
        names = [held.enter_context(rpc_server()).address for _ in range(3)]
        two, three = ([f"rpc:{name}" for name in names[:n]] for n in (2, 3))
        shares = (
            (three, (1, 1, 1)), (two, (1, 1)), (three, (3, 1, 2)), (two, (3, 1)), (two, (1, 3)),
        )  # fmt: skip
        moves = tuple({"devices": on, "tensor_split": split, "layers": 31} for on, split in shares)
        listed = ", ".join(f'"{name}"' for name in names)
        more = f"[rpc]\nservers = [{listed}]\n"
        with _running(held, _hermes(held), moves, more=more, has_room=True) as world:
            world.move({"devices": two, "tensor_split": (2, 1), "layers": 31})
            yield world


@contextmanager
def on_vulkan() -> Iterator[World]:
    """Between the processor and Mesa's software device, whose math is another."""
    moves: tuple[Options, ...] = (
        {"devices": ["Vulkan0"], "layers": VULKAN_LAYERS}, {"layers": 0},
    )  # fmt: skip
    with (
        ExitStack() as held,
        _running(held, _hermes(held), moves, more=VULKAN, environ=VULKAN_ENVIRON, slots=2) as world,
    ):
        world.move(moves[1])
        yield world


@contextmanager
def _tiny(name: str, moves: tuple[Options, ...], *, slots: int) -> Iterator[World]:
    """A small model of random weights, of one architecture."""
    with ExitStack() as held:
        folder = held.enter_context(_folder())
        (model,) = (model for model in tiny_models() if model.name == name)
        with _running(held, write(model, folder), moves, slots=slots) as world:
            yield world


@contextmanager
def with_windows() -> Iterator[World]:
    """A model of sliding windows."""
    with _tiny("windows-6", SHIFTS, slots=SLOTS) as world:
        yield world


@contextmanager
def recurrent() -> Iterator[World]:
    """A model whose state cannot be rolled back."""
    with _tiny("state-2", RESIZES, slots=1) as world:
        yield world


@contextmanager
def hybrid() -> Iterator[World]:
    """A recurrent model with some layers of attention."""
    with _tiny("hybrid-2", RESIZES, slots=1) as world:
        yield world
