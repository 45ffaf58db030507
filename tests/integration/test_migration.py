"""Streams whose model moves or loses its process, on the real engine: callers see one reply."""

import json
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from tests.integration.streams import DIALECTS, PROMPTS, WITHIN_S, asked, events, read

SLOTS = len(PROMPTS)
CONFIG = f"[models]\nparallel = {SLOTS}\ncontext = 1024\n"


@pytest.fixture(scope="module")
def moving(model_dir: Path) -> Iterator[StartedDaemon]:
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        started_daemon(Path(folder), model_dirs=[model_dir], config=CONFIG) as daemon,
    ):
        daemon.wait_for_engines()
        yield daemon


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SLOTS + 1) as threads:
        yield threads


def moved(daemon: StartedDaemon, *options: str) -> dict[str, Any]:
    (instance,) = [i for i in daemon.status()["instances"] if i["state"] == "ready"]
    told = daemon.ctl("migrate", instance["model"], *options, "--json")
    assert told.returncode == 0, told.stderr
    report: dict[str, Any] = json.loads(told.stdout)
    return report


def slot_files(daemon: StartedDaemon) -> list[Path]:
    return list((daemon.folder / "state" / "slots").rglob("*.bin"))


def test_streams_of_every_dialect_go_on_byte_for_byte(
    moving: StartedDaemon, threads: ThreadPoolExecutor
) -> None:
    pairs = list(zip(DIALECTS, PROMPTS, strict=True))
    alone = [read(moving.base, dialect, prompt, Event()) for dialect, prompt in pairs]
    streams = [asked(moving, threads, dialect, prompt) for dialect, prompt in pairs]
    assert all(stream.begun.wait(WITHIN_S) for stream in streams)

    reports = [moved(moving, "--context", context) for context in ("2048", "1536")]

    assert [stream.text.result(WITHIN_S) for stream in streams] == alone
    assert [report["context"] for report in reports] == [2048, 1536]
    assert all(report["keeps_math"] for report in reports)
    assert all(report["slots"] >= report["streams"] for report in reports)
    resumed = events(moving, "stream.resumed")
    assert len(resumed) == sum(report["streams"] for report in reports)
    assert {event["facts"]["way"] for event in resumed} <= {"continue", "finish"}
    assert all(event["facts"]["n_computed"] <= 8 for event in resumed)
    assert not slot_files(moving)


def test_streams_share_fewer_slots_after_a_move(
    moving: StartedDaemon, threads: ThreadPoolExecutor
) -> None:
    alone = [read(moving.base, DIALECTS[0], prompt, Event()) for prompt in PROMPTS]
    streams = [asked(moving, threads, DIALECTS[0], prompt) for prompt in PROMPTS]
    assert all(stream.begun.wait(WITHIN_S) for stream in streams)

    fewer = moved(moving, "--parallel", "2")

    assert [stream.text.result(WITHIN_S) for stream in streams] == alone
    assert fewer["slots"] <= 2
    assert moved(moving, "--parallel", str(SLOTS))["parallel"] == SLOTS
    assert not slot_files(moving)


def test_what_does_not_fit_is_refused_and_disturbs_nobody(
    moving: StartedDaemon, threads: ThreadPoolExecutor
) -> None:
    alone = read(moving.base, DIALECTS[0], PROMPTS[0], Event())
    before = moving.status()["instances"][0]["pid"]
    stream = asked(moving, threads, DIALECTS[0], PROMPTS[0])
    assert stream.begun.wait(WITHIN_S)

    model = moving.status()["instances"][0]["model"]
    told = moving.ctl("migrate", model, "--parallel", "256", "--context", "8192")

    assert told.returncode == 1
    assert "does not even fit" in told.stderr
    assert stream.text.result(WITHIN_S) == alone
    assert moving.status()["instances"][0]["pid"] == before


LONG = (
    "Here is what you should know. The harbour has four piers, and each has its own colour. The"
    " first is red, the second is blue, the third is green and the last one is white. Ferries leave"
    " from the blue pier at nine in the morning and come back in the evening. Fishing boats lie at"
    " the white one. Answer in one short sentence: from which pier do the ferries leave?"
)


def turn(daemon: StartedDaemon, messages: list[dict[str, str]]) -> tuple[str, int]:
    """What is said next, and how many tokens of the prompt were cached."""
    model = httpx.get(f"{daemon.base}/v1/models", trust_env=False).json()["data"][0]["id"]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 12}
    reply = httpx.post(
        f"{daemon.base}/v1/chat/completions", json=body, timeout=WITHIN_S, trust_env=False
    ).json()
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return str(reply["choices"][0]["message"]["content"]), int(cached)


def unload(daemon: StartedDaemon) -> None:
    """Tells the model that runs to go, and waits until it has."""
    model = daemon.status()["instances"][0]["model"]
    assert daemon.ctl("unload", model).returncode == 0
    deadline = time.monotonic() + WITHIN_S
    while daemon.status()["instances"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_conversation_is_not_read_again_after_its_model_was_unloaded(
    moving: StartedDaemon,
) -> None:
    asked = [{"role": "user", "content": LONG}]
    said, _ = turn(moving, asked)
    unload(moving)
    assert {stat.S_IMODE(path.stat().st_mode) for path in slot_files(moving)} == {0o600}

    more = [{"role": "assistant", "content": said}, {"role": "user", "content": "And the boats?"}]
    _, cached = turn(moving, [*asked, *more])

    assert cached > 80
    assert not slot_files(moving)
    assert events(moving, "conversations.restored")


def test_a_conversation_goes_along_again_though_nobody_spoke_meanwhile(
    moving: StartedDaemon,
) -> None:
    asked = [{"role": "user", "content": LONG}]
    turn(moving, asked)
    moved(moving, "--context", "3072")
    _, cached = turn(moving, asked)
    assert cached > 80
    moved(moving, "--context", "2048")
    moved(moving, "--context", "3072")
    unload(moving)
    model = httpx.get(f"{moving.base}/v1/models", trust_env=False).json()["data"][0]["id"]
    assert moving.ctl("load", model).returncode == 0
    unload(moving)

    _, cached = turn(moving, asked)

    assert cached > 80


def test_a_process_that_others_told_to_end_is_followed_though_it_stays(
    moving: StartedDaemon, threads: ThreadPoolExecutor
) -> None:
    turn(moving, [{"role": "user", "content": "Hello."}])
    (pid,) = [instance["pid"] for instance in moving.status()["instances"]]
    stream = asked(moving, threads, DIALECTS[0], PROMPTS[0])
    assert stream.begun.wait(WITHIN_S)

    os.kill(pid, signal.SIGTERM)

    assert stream.text.result(WITHIN_S)
    assert turn(moving, [{"role": "user", "content": "Hello."}])[0]
    assert pid not in [instance["pid"] for instance in moving.status()["instances"]]
