"""A real daemon over the fake engine, brought into a state, with callers on their way."""

import json
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import Event
from typing import Any, Self

import httpx
import psutil

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.tinymodel import tiny_model
from tests.fakes.processes import is_gone
from tests.fakes.waiting import until

FAKES = Path(__file__).parents[1] / "fakes"
FAKE = FAKES / "llama_server.py"
NVML = FAKES / "nvml" / "nvml.c"
WITHIN_S = 30.0
LOOK_S = 0.01  # cadence of looking
TOKEN_S = 0.8  # of a reply in whose middle something is to happen, on a busy machine too
SAID = "one two three four"
MODEL, OTHER = "tiny", "other"
OFFERED = {MODEL: 128, OTHER: 128}
AT_LENGTH = 100  # tokens: a minute, for what must strike before the end on a busy machine too
SPARE_DESCRIPTORS = 4  # connections that are still closing


class State(Enum):
    """What the model's instance is doing when the fault strikes."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ANSWERING = "mid-stream"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a caller saw: all it was sent, and how that ended."""

    status: int
    text: str
    error: str
    """Of the reply's body or of an event in its middle; "" where there is none."""
    is_whole: bool
    """The stream said that it was at its end."""


@dataclass(slots=True)
class Caller:
    """One streamed chat in a thread of its own."""

    future: Future[Ended]
    began: Event
    """Set once a piece of text was delivered."""
    leave: Event
    """Set to have the caller go away."""

    def ended(self, within_s: float = WITHIN_S) -> Ended:
        """How it ended. Raises httpx.HTTPError where its connection broke."""
        return self.future.result(within_s)


@dataclass(slots=True)
class Scene:
    """A daemon, what it is ordered to suffer, and who calls."""

    daemon: StartedDaemon
    threads: ThreadPoolExecutor
    faults: Path
    fleet: str
    """The [fleet] table of its configuration."""
    models: Mapping[str, int] = field(default_factory=lambda: OFFERED)
    """By name, with their contexts, as last offered."""
    daemon_fds: int = 0
    """Of the daemon after its first model came and went."""
    began_at: float = 0.0
    """UTC seconds; what happened earlier is no part of this scene."""
    callers: list[Caller] = field(default_factory=list)
    posts: list[Future[int]] = field(default_factory=list)

    @property
    def process(self) -> psutil.Process:
        """The daemon's."""
        return psutil.Process(self.daemon.process.pid)

    def order(self, **faults: object) -> None:
        """What goes wrong from the next launch on."""
        Path(f"{self.faults}.launches").unlink(missing_ok=True)
        self.faults.write_text(json.dumps(faults))

    def also(self, **faults: object) -> None:
        """What goes wrong besides, from the next launch on."""
        self.order(**(json.loads(self.faults.read_text()) | faults))

    def call(self, model: str = MODEL, *, tokens: int = 4) -> Caller:
        """Ask for SAID, streamed, over and over until so many tokens are told."""
        began, leave = Event(), Event()
        future = self.threads.submit(_chat, self.daemon.base, model, tokens, began, leave)
        self.callers.append(Caller(future, began, leave))
        return self.callers[-1]

    def says(self, model: str = MODEL) -> Ended:
        """What a new caller is told in the end."""
        return self.call(model).ended()

    def state(self, model: str = MODEL) -> str | None:
        """Of the model's instance; None where there is none."""
        found = [i for i in self.daemon.status()["instances"] if i["model"] == model]
        return str(found[-1]["state"]) if found else None

    def pid(self, model: str = MODEL) -> int | None:
        """Of the model's child, where there is one."""
        found = [i for i in self.daemon.status()["instances"] if i["model"] == model]
        return int(found[-1]["pid"]) if found and found[-1]["pid"] else None

    def child(self, model: str = MODEL) -> psutil.Process:
        """The model's child, which runs."""
        pid = self.pid(model)
        assert pid is not None
        return psutil.Process(pid)

    def events(self, kind: str) -> list[str]:
        """The reasons of all events of one kind in this scene."""
        told = self._door("GET", "/events?limit=1000")["events"]
        return [e["reason"] for e in told if e["kind"] == kind and e["at"] >= self.began_at]

    def post(self, path: str, model: str = MODEL) -> None:
        """Tell the admin door to do something with a model, in a thread: it may wait for it."""
        socket_path = str(self.daemon.admin_socket)
        self.posts.append(self.threads.submit(_post, socket_path, path, model))

    def context(self, model: str = MODEL) -> int | None:
        """Of the model's instance, for one request."""
        found = [i for i in self.daemon.status()["instances"] if i["model"] == model]
        return int(found[-1]["context"]) if found else None

    def write_config(self, *, models: Mapping[str, int]) -> None:
        """Offer these models; the daemon is not told."""
        self.models = models
        text = config_text(self.daemon.folder, fleet=self.fleet, models=models)
        fresh = self.daemon.folder / "config.new"
        fresh.write_text(text)
        fresh.replace(self.daemon.folder / "config.toml")

    def configure(self, *, models: Mapping[str, int]) -> None:
        """Offer these models, by name, with these contexts; and have the daemon read it."""
        self.write_config(models=models)
        self._door("POST", "/reload")

    def set_fleet(self, fleet: str) -> None:
        """Go on under another [fleet] table."""
        self.fleet = fleet
        self.configure(models=self.models)

    def _door(self, method: str, path: str, asked: object = None) -> Any:
        transport = httpx.HTTPTransport(uds=str(self.daemon.admin_socket))
        with httpx.Client(transport=transport, base_url="http://admin", timeout=60) as client:
            reply = client.request(method, path, json=asked)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def until(self, holds: Callable[[], bool], *, within_s: float = WITHIN_S) -> None:
        """Wait until something holds."""
        until(holds, within_s=within_s, told=lambda: self.daemon.log()[-4000:])

    def into(self, state: State, *, load_s: float = 2.0, tokens: int = 4) -> Caller | None:
        """Bring MODEL there; the caller that waits or is being answered, where there is one."""
        match state:
            case State.LOADING:
                self.also(load_s=load_s)
                caller = self.call()
                self.until(lambda: self.state() == "loading" and self.pid() is not None)
                return caller
            case State.READY:
                assert self.says().text == SAID
                return None
            case State.ANSWERING:
                return self.answering(tokens=tokens)
            case State.DRAINING:
                caller = self.answering(tokens=tokens)
                self.post("/unload")
                self.until(lambda: self.state() == "draining")
                return caller

    def answering(self, *, tokens: int = 4) -> Caller:
        """A caller who has the beginning of an answer."""
        self.also(token_s=TOKEN_S)
        caller = self.call(tokens=tokens)
        assert caller.began.wait(WITHIN_S)
        return caller

    def leaves_nothing(self) -> None:
        """Assert that the daemon, asked to unload, holds nothing of what was."""
        for caller in self.callers:
            caller.leave.set()
        for model in (MODEL, OTHER):
            self.post("/unload", model)
        self.until(lambda: not self.process.children(recursive=True))
        self.until(lambda: all(i["pid"] is None for i in self.daemon.status()["instances"]))
        told = self.daemon.status()["instances"]
        assert [i for i in told if i["running"] or i["waiting"]] == []
        assert [path.name for path in (self.daemon.folder / "run").rglob("i*-*.sock")] == []
        self.until(lambda: self.process.num_fds() <= self.daemon_fds + SPARE_DESCRIPTORS)

    def clear(self, *, fleet: str) -> None:
        """Have the daemon forget what was, so that another scene can begin on it."""
        for caller in self.callers:
            caller.leave.set()
        self.order()
        if self.fleet != fleet or self.models != OFFERED:
            self.models = OFFERED
            self.set_fleet(fleet)
        for model in OFFERED:
            self.post("/unload", model)
        wait(self.posts, WITHIN_S)
        self.until(lambda: self.daemon.status()["instances"] == [])
        self._door("POST", "/forget", {"all": True})
        self.callers.clear()
        self.posts.clear()
        self.began_at = time.time()

    def settle(self) -> None:
        """Load and unload once, so that what is opened lazily is open."""
        assert self.says().text == SAID
        self.post("/unload")
        self.until(lambda: self.state() is None)
        self.daemon_fds = self.process.num_fds()


def config_text(folder: Path, *, fleet: str, models: Mapping[str, int]) -> str:
    """The fake engine, and models by name with their contexts."""
    lines = ["[backends.fake]", f'path = "{FAKE}"', "[fleet]", fleet, "[memory]", 'reserve = "0"']
    for name, context in models.items():
        lines += ["[[model]]", f'name = "{name}"', f'path = "{folder / f"{name}-file.gguf"}"']
        lines += [f"context = {context}"]
    return "\n".join(lines) + "\n"


@contextmanager
def playing(
    folder: Path, *, fleet: str = "", environ: Mapping[str, str] | None = None
) -> Iterator[Scene]:
    """A scene for as long as the block lasts; whatever happened, nothing of it is left."""
    for name in (MODEL, OTHER):
        (folder / f"{name}-file.gguf").write_bytes(tiny_model())
    faults = folder / "faults.json"
    faults.write_text("{}")
    daemon_of = started_daemon(
        folder,
        model_dirs=(),
        config=config_text(folder, fleet=fleet, models=OFFERED),
        environ={"FAKE_FAULTS": str(faults), "PATH": "/usr/bin:/bin", **(environ or {})},
    )
    with ThreadPoolExecutor(8) as threads, daemon_of as daemon:
        daemon.wait_for_engines()
        scene = Scene(daemon, threads, faults, fleet)
        scene.settle()
        try:
            yield scene
        finally:
            for caller in scene.callers:
                caller.leave.set()
            wait(scene.posts, WITHIN_S)  # before there is no daemon: httpx leaks its socket then


class Stage:
    """Scenes on one daemon, as long as it lives and comes to rest; else on the next one."""

    def __init__(self, *, fleet: str = "", environ: Mapping[str, str] | None = None) -> None:
        self._fleet, self._environ = fleet, environ
        self._scene: Scene | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._held.close()

    @contextmanager
    def playing(self) -> Iterator[Scene]:
        """One scene; the next finds nothing of it."""
        scene = self._scene or self._begun()
        try:
            yield scene
        finally:
            if not self._is_cleared(scene):
                self._scene = None
                self._held.close()

    def _begun(self) -> Scene:
        # Short, as sockets lie in it.
        folder = Path(self._held.enter_context(tempfile.TemporaryDirectory(prefix="ios-")))
        playing_here = playing(folder, fleet=self._fleet, environ=self._environ)
        self._scene = self._held.enter_context(playing_here)
        return self._scene

    def _is_cleared(self, scene: Scene) -> bool:
        # One that was killed has been waited for: httpx leaks its socket where nobody listens.
        if scene.daemon.process.poll() is not None:
            return False
        try:
            scene.clear(fleet=self._fleet)
        except (AssertionError, httpx.HTTPError):  # its test has told why, or the next one would
            return False
        return True


def until_gone(process: psutil.Process, *, within_s: float) -> None:
    """Wait for the end of a process that somebody else reaps."""
    until(
        lambda: is_gone(process.pid),
        within_s=within_s,
        told=lambda: f"pid {process.pid} lives on",
    )


@contextmanager
def full_disk(scene: Scene) -> Iterator[None]:
    """Nothing of the daemon's can grow for as long as the block lasts."""
    largest = max(p.stat().st_size for p in scene.daemon.folder.rglob("*") if p.is_file())
    scene.process.rlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        if scene.daemon.process.poll() is None:
            scene.process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def kill(process: psutil.Process) -> None:
    """SIGKILL."""
    process.send_signal(signal.SIGKILL)


def _post(socket_path: str, path: str, model: str) -> int:
    transport = httpx.HTTPTransport(uds=socket_path)
    with httpx.Client(transport=transport, base_url="http://admin", timeout=60) as client:
        return client.post(path, json={"model": model}).status_code


def _chat(base: str, model: str, tokens: int, began: Event, leave: Event) -> Ended:
    body = {"model": model, "messages": [{"role": "user", "content": SAID}], "stream": True}
    with (
        httpx.Client(base_url=base, timeout=60, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json={**body, "max_tokens": tokens}) as reply,
    ):
        if reply.status_code != 200:
            return Ended(reply.status_code, "", reply.read().decode(), is_whole=True)
        text = ""
        for line in reply.iter_lines():
            if leave.is_set():
                return Ended(200, text, "", is_whole=False)
            if line == "data: [DONE]":
                return Ended(200, text, "", is_whole=True)
            if not line.startswith("data: "):
                continue
            told = json.loads(line.removeprefix("data: "))
            if "error" in told:
                return Ended(200, text, str(told["error"]["message"]), is_whole=True)
            for choice in told["choices"]:
                text += choice["delta"].get("content") or ""
            if text:
                began.set()
        return Ended(200, text, "", is_whole=False)
