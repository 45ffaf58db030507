"""A reload that changes a running model, on the real engine: its streams go on as one reply."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psutil
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import packaged_engine
from tests.fakes.processes import standing_still
from tests.fakes.rpc_servers import rpc_server
from tests.fakes.waiting import until
from tests.integration.conftest import Start
from tests.integration.streams import (
    DIALECTS,
    PROMPTS,
    WITHIN_S,
    Dialect,
    Stream,
    asked,
    events,
    read,
)

PAIRS = tuple(zip(DIALECTS[:2], PROMPTS[:2], strict=True))
SLOTS = len(PAIRS)
TOKENS = 100
ON_CPU = {"GGML_VK_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SLOTS + 2) as threads:
        yield threads


@pytest.fixture(scope="module")
def moving(model_dir: Path) -> Iterator[StartedDaemon]:
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        started_daemon(
            Path(folder), model_dirs=[model_dir], config=config(), environ=ON_CPU
        ) as daemon,
    ):
        daemon.wait_for_engines()
        yield daemon


@pytest.fixture(scope="module")
def whole(moving: StartedDaemon) -> list[str]:
    """What callers are told whom nothing disturbs."""
    return alone(moving)


@pytest.fixture
def daemon(moving: StartedDaemon) -> StartedDaemon:
    """The module's daemon, as it was configured at first, with its model loaded."""
    reload(moving, config())
    said(moving, *PAIRS[0], tokens=1)
    only(moving)
    return moving


def config(*, context: int = 1024, slots: int = SLOTS, more: str = "") -> str:
    """With room for one launch, so that its streams are cut before the next one loads."""
    room = '[memory]\nlimit = "700MiB"\n'
    return f"[models]\nparallel = {slots}\ncontext = {context}\n{room}{more}"


def write(daemon: StartedDaemon, text: str) -> None:
    """An edit that was over a while ago."""
    path = daemon.folder / "config.toml"
    path.write_text(text)
    os.utime(path, (0, 0))


def reload(daemon: StartedDaemon, text: str) -> str:
    """What the daemon says to another configuration."""
    write(daemon, text)
    transport = httpx.HTTPTransport(uds=str(daemon.admin_socket))
    with httpx.Client(transport=transport, base_url="http://admin", timeout=60) as client:
        reply = client.post("/reload")
    assert reply.status_code == 200, reply.text
    return reply.text


def said(daemon: StartedDaemon, dialect: Dialect, prompt: str, *, tokens: int = TOKENS) -> str:
    return read(daemon.base, dialect, prompt, Event(), tokens=tokens)


def alone(daemon: StartedDaemon) -> list[str]:
    return [said(daemon, dialect, prompt) for dialect, prompt in PAIRS]


def begun(daemon: StartedDaemon, threads: ThreadPoolExecutor) -> list[Stream]:
    """A stream of each dialect, of which its caller has something."""
    streams = [asked(daemon, threads, *pair, tokens=TOKENS) for pair in PAIRS]
    assert all(stream.begun.wait(WITHIN_S) for stream in streams)
    return streams


@contextmanager
def halted(
    daemon: StartedDaemon, threads: ThreadPoolExecutor
) -> Iterator[tuple[dict[str, Any], list[Stream]]]:
    """The instance, and streams that it has begun: it stands still until its move has begun."""
    instance = only(daemon)
    streams = begun(daemon, threads)
    with standing_still(psutil.Process(instance["pid"])):
        yield instance, streams
        until(
            lambda: daemon.status()["migrations"],
            within_s=WITHIN_S,
            told=lambda: daemon.log()[-3000:],
        )


def texts(streams: list[Stream]) -> list[str]:
    return [stream.text.result(WITHIN_S) for stream in streams]


def only(daemon: StartedDaemon) -> dict[str, Any]:
    """The one instance that is left."""
    found: list[dict[str, Any]] = []

    def is_alone() -> bool:
        found[:] = daemon.status()["instances"]
        return len(found) == 1 and found[0]["state"] == "ready"

    until(is_alone, within_s=WITHIN_S, told=lambda: found)
    return found[0]


def first(daemon: StartedDaemon, kind: str, *, since: float) -> dict[str, Any]:
    """The first event of a kind since then."""
    until(
        lambda: told(daemon, kind, since=since),
        within_s=WITHIN_S,
        told=lambda: daemon.log()[-3000:],
    )
    return told(daemon, kind, since=since)[0]


def told(daemon: StartedDaemon, kind: str, *, since: float) -> list[dict[str, Any]]:
    return [event for event in events(daemon, kind) if event["at"] >= since]


@pytest.mark.parametrize("how", ["reload", "SIGHUP"])
def test_another_context_and_other_slots_come_without_a_break(
    daemon: StartedDaemon, threads: ThreadPoolExecutor, whole: list[str], how: str
) -> None:
    began = time.time()
    changed = config(context=1536, slots=SLOTS + 1)

    with halted(daemon, threads) as (before, streams):
        if how == "SIGHUP":
            write(daemon, changed)
            daemon.process.send_signal(signal.SIGHUP)
        else:
            assert "its streams go on" in reload(daemon, changed)

    assert texts(streams) == whole
    done = first(daemon, "migration.done", since=began)
    assert (done["facts"]["order"], done["facts"]["streams"]) == ("break-before-make", SLOTS)
    after = only(daemon)
    assert (after["context"], after["slots"]) == (1536, SLOTS + 1)
    assert after["pid"] != before["pid"]
    ways = {event["facts"]["way"] for event in told(daemon, "stream.resumed", since=began)}
    assert "continue" in ways
    assert ways <= {"continue", "finish"}


def test_other_flags_of_the_operators_own_come_with_streams_that_go_on_from_their_text(
    daemon: StartedDaemon, threads: ThreadPoolExecutor, whole: list[str]
) -> None:
    began = time.time()

    with halted(daemon, threads) as (before, streams):
        named = f'[[model]]\nname = "{before["model"]}"\nflags = ["--no-warmup"]\n'
        reload(daemon, config(more=named))

    assert [text[:10] for text in texts(streams)] == [text[:10] for text in whole]
    assert "its own flags change" in first(daemon, "migration.begun", since=began)["reason"]
    first(daemon, "migration.done", since=began)
    assert not told(daemon, "migration.failed", since=began)


def test_what_does_not_come_to_serve_as_wanted_serves_on_as_it_is(
    daemon: StartedDaemon, threads: ThreadPoolExecutor, whole: list[str]
) -> None:
    began = time.time()

    with halted(daemon, threads) as (before, streams):
        named = f'[[model]]\nname = "{before["model"]}"\nflags = ["--no-such-flag"]\n'
        reload(daemon, config(more=named))

    assert texts(streams) == whole
    assert "no-such-flag" in first(daemon, "migration.failed", since=began)["reason"]
    assert said(daemon, *PAIRS[0]) == whole[0]
    assert only(daemon)["context"] == before["context"]
    assert len(told(daemon, "migration.failed", since=began)) == 1


@pytest.mark.timeout(300)
def test_a_storm_of_reloads_leaves_nobody_waiting_and_no_text_wrong(
    daemon: StartedDaemon, threads: ThreadPoolExecutor, whole: list[str]
) -> None:
    over, began = Event(), time.time()

    def storm() -> int:
        n = 0
        while not over.is_set():
            n += 1
            reload(daemon, config(context=1024 + 256 * (n % 3)))
        return n

    reloads = threads.submit(storm)
    try:
        first = texts(begun(daemon, threads))
        again = texts(begun(daemon, threads))
    finally:
        over.set()

    assert first == again == whole
    assert reloads.result(WITHIN_S) > 3
    assert not told(daemon, "migration.failed", since=began)


def test_another_build_of_the_engine_takes_over_with_the_streams(
    start: Start, threads: ThreadPoolExecutor, whole: list[str], tmp_path: Path
) -> None:
    packaged, build = packaged_engine(), tmp_path / "build"
    assert packaged is not None
    build.mkdir()
    for part in packaged.path.parent.iterdir():
        (build / part.name).symlink_to(part)
    (build / "llama-server").unlink()
    shutil.copy(packaged.path, build / "llama-server")
    (build / "libold.so").write_bytes(b"of this build")  # else it is the quickstart's very own
    text = config(more=f'[backends.mine]\npath = "{build}/llama-server"\n')
    daemon = start(config=text, environ=ON_CPU)
    said(daemon, *PAIRS[0], tokens=1)
    began = time.time()

    with halted(daemon, threads) as (before, streams):
        (build / "libold.so").write_bytes(b"of another build")
        reload(daemon, text)

    assert [text[:10] for text in texts(streams)] == [text[:10] for text in whole]
    reason = first(daemon, "migration.begun", since=began)["reason"]
    assert "its llama-server was replaced" in reason
    first(daemon, "migration.done", since=began)
    assert only(daemon)["pid"] != before["pid"]


def test_a_lowered_limit_of_a_device_moves_what_is_on_it_and_its_streams(
    start: Start, threads: ThreadPoolExecutor
) -> None:
    with rpc_server() as one, rpc_server() as other:
        servers = {f"rpc:{server.address}" for server in (one, other)}

        def limited(**mib: int) -> str:
            names = ", ".join(f'"{server.address}"' for server in (one, other))
            limits = "".join(
                f'[devices."{device}"]\nlimit = "{mib.get(device, 400)}MiB"\nreserve = 0\n'
                for device in sorted(servers)
            )
            return config(more=f"[rpc]\nservers = [{names}]\n{limits}")

        daemon = start(config=limited(), environ=ON_CPU)
        whole = alone(daemon)
        (used,) = servers & {part["device"] for part in only(daemon)["memory"]}
        with halted(daemon, threads) as (_, streams):
            reload(daemon, limited(**{used: 1}))

        assert texts(streams) == whole
        until(
            lambda: used not in {part["device"] for part in only(daemon)["memory"]},
            within_s=WITHIN_S,
        )
