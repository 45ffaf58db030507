"""Streams whose model moves or loses its process, on the real engine: callers see one reply."""

import json
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon

WITHIN_S = 120.0
BEGUN = 4  # pieces of text that a caller has before its model moves
TOKENS = 40
PROMPTS = (
    "Tell me a long story about a fox.",
    "Explain how rain forms.",
    "List ten animals with a sentence each.",
    "What is a computer? Answer at length.",
)
SLOTS = len(PROMPTS)
CONFIG = f"[models]\nparallel = {SLOTS}\ncontext = 1024\n"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one of them asks for a greedy stream, and what of a line of it is text."""

    path: str
    asks: Callable[[str, str], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]


def _chat(model: str, prompt: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": 0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }


def _native(model: str, prompt: str) -> dict[str, Any]:
    asked = _chat(model, prompt)
    return {key: asked[key] for key in ("model", "messages", "stream")} | {
        "options": {"temperature": 0, "num_predict": TOKENS}
    }


DIALECTS = (
    Dialect(
        "/v1/chat/completions",
        _chat,
        lambda told: "".join(c["delta"].get("content") or "" for c in told["choices"]),
    ),
    Dialect("/api/chat", _native, lambda told: str(told["message"]["content"])),
    Dialect("/v1/messages", _chat, lambda told: str(told.get("delta", {}).get("text", ""))),
    Dialect(
        "/v1/responses",
        lambda model, prompt: {
            "model": model, "input": prompt, "stream": True, "temperature": 0,
            "max_output_tokens": TOKENS,
        },
        lambda told: told["delta"] if told["type"] == "response.output_text.delta" else "",
    ),
)  # fmt: skip


@dataclass(slots=True)
class Stream:
    """One caller in a thread of its own."""

    text: Future[str]
    begun: Event


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


def read(base: str, dialect: Dialect, prompt: str, begun: Event) -> str:
    """The text of one stream; an error in it raises."""
    model = httpx.get(f"{base}/v1/models", trust_env=False).json()["data"][0]["id"]
    text, pieces = "", 0
    with (
        httpx.Client(base_url=base, timeout=WITHIN_S, trust_env=False) as client,
        client.stream("POST", dialect.path, json=dialect.asks(model, prompt)) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            bare = line.removeprefix("data: ")
            if not bare.startswith("{"):
                continue
            told = json.loads(bare)
            assert not told.get("error"), told
            text += dialect.text(told)
            pieces += bool(dialect.text(told))
            if pieces >= BEGUN:
                begun.set()
    return text


def asked(
    moving: StartedDaemon, threads: ThreadPoolExecutor, dialect: Dialect, prompt: str
) -> Stream:
    begun = Event()
    return Stream(threads.submit(read, moving.base, dialect, prompt, begun), begun)


def moved(daemon: StartedDaemon, *options: str) -> dict[str, Any]:
    (instance,) = [i for i in daemon.status()["instances"] if i["state"] == "ready"]
    told = daemon.ctl("migrate", instance["model"], *options, "--json")
    assert told.returncode == 0, told.stderr
    report: dict[str, Any] = json.loads(told.stdout)
    return report


def events(daemon: StartedDaemon, kind: str) -> list[dict[str, Any]]:
    told = json.loads(daemon.ctl("events", "--json").stdout)["events"]
    return [event for event in told if event["kind"] == kind]


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
