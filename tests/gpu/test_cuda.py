"""What only a real card can show: its readings, bytes, speed, and a model that moves on it."""

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pynvml
import pytest

from scripts.started_daemon import StartedDaemon
from tests.gpu.conftest import LAYERS, MODEL

MIB = 1 << 20
WITHIN_S = 120.0
TOKENS = 128
LONG = 4000  # tokens of the stream that is moved twice
ROUNDS = 3


@pytest.fixture(scope="module")
def card() -> Iterator[Any]:
    """NVML's handle of the first card."""
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


@pytest.fixture
def loaded(daemon: StartedDaemon) -> dict[str, Any]:
    """The model's instance, all of it on the card."""
    done = daemon.ctl("load", MODEL.name)
    assert done.returncode == 0, done.stderr
    return instance(daemon)


def instance(daemon: StartedDaemon) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = daemon.status()["instances"]
    return found


def used_bytes(card: Any) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(card).used)


def ask(client: httpx.Client, path: str, *, tokens: int) -> float:
    """Decode tokens/s of one request by the engine's own timings."""
    question = {
        "model": MODEL.name,
        "prompt": "Once upon a time",
        "n_predict": tokens,
        "ignore_eos": True,
    }
    reply = client.post(path, json=question, timeout=WITHIN_S)
    assert reply.status_code == 200, reply.text
    return float(reply.json()["timings"]["predicted_per_second"])


def test_the_engine_was_tried_and_sees_the_card(daemon: StartedDaemon) -> None:
    engines = [engine for engine in daemon.status()["engines"] if engine["backend"] == "cuda"]

    assert [engine["refused"] for engine in engines] == [None]


def test_what_the_daemon_reads_of_the_card_is_what_nvml_says(
    daemon: StartedDaemon, card: Any
) -> None:
    profile = json.loads(daemon.ctl("profile", "--json").stdout)
    memory = pynvml.nvmlDeviceGetMemoryInfo(card)

    read = next(each for each in profile["devices"] if each["kind"] != "software")
    assert read["total_bytes"] == pytest.approx(memory.total, rel=0.01)
    assert read["free_bytes"] == pytest.approx(memory.free, abs=256 * MIB)


def test_a_launch_takes_the_bytes_that_were_planned(
    daemon: StartedDaemon, card: Any, loaded: dict[str, Any]
) -> None:
    on_card = [each for each in loaded["memory"] if each["device"] != "host"]
    (part,) = on_card
    with_it = used_bytes(card)
    daemon.ctl("unload", MODEL.name)
    give_up_s = time.monotonic() + WITHIN_S
    while daemon.status()["instances"]:
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
    taken = with_it - used_bytes(card)

    print(f"predicted {part['predicted_bytes']} measured {part['measured_bytes']} taken {taken}")
    assert part["measured_bytes"] == pytest.approx(part["predicted_bytes"], rel=0.02, abs=32 * MIB)
    assert taken <= part["predicted_bytes"] + part["reserved_bytes"]


def test_the_plan_decodes_as_fast_as_what_the_engine_fits_by_itself(
    daemon: StartedDaemon, engine_path: Path, model_dir: Path, loaded: dict[str, Any]
) -> None:
    ours, theirs = [], []
    with (
        fitted(engine_path, model_dir / f"{MODEL.name}.gguf") as fit,
        httpx.Client(base_url=daemon.base) as public,
    ):
        for client, path in ((public, f"/upstream/{MODEL.name}/completion"), (fit, "/completion")):
            ask(client, path, tokens=16)
        for _ in range(ROUNDS):  # by turns: clocks drift
            ours.append(ask(public, f"/upstream/{MODEL.name}/completion", tokens=TOKENS))
            theirs.append(ask(fit, "/completion", tokens=TOKENS))

    print(f"plan {ours}, --fit {theirs} tokens/s")
    assert sorted(ours)[ROUNDS // 2] >= 0.9 * sorted(theirs)[ROUNDS // 2]


@contextmanager
def fitted(engine: Path, model: Path) -> Iterator[httpx.Client]:
    """A bare llama-server that chooses everything itself."""
    with tempfile.TemporaryDirectory(prefix="ios-") as folder:
        socket, log = Path(folder) / "s.sock", Path(folder) / "log"
        with log.open("wb") as out:
            child = subprocess.Popen(
                [str(engine), "--model", str(model), "--host", str(socket)],
                cwd=folder,
                stdout=out,
                stderr=out,
            )
        try:
            transport = httpx.HTTPTransport(uds=str(socket))
            with httpx.Client(transport=transport, base_url="http://engine") as client:
                give_up_s = time.monotonic() + WITHIN_S
                while not socket.exists() or client.get("/health").status_code != 200:
                    assert child.poll() is None, log.read_text()[-2000:]
                    assert time.monotonic() < give_up_s
                    time.sleep(0.1)
                yield client
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()


def test_a_stream_goes_on_while_its_model_moves_to_half_its_layers_and_back(
    daemon: StartedDaemon, loaded: dict[str, Any]
) -> None:
    begun, all_layers = Event(), loaded["devices"][0]["layers"]
    with ThreadPoolExecutor(1) as threads:
        stream = threads.submit(streamed, daemon, begun)
        assert begun.wait(WITHIN_S)
        down = daemon.ctl("migrate", MODEL.name, "--layers", str(LAYERS // 2))
        half = instance(daemon)["devices"]
        up = daemon.ctl("migrate", MODEL.name, "--layers", str(all_layers))
        whole = instance(daemon)["devices"]
        tokens, reason = stream.result(timeout=2 * WITHIN_S)

    print(down.stdout, up.stdout)
    assert down.returncode == up.returncode == 0, down.stderr + up.stderr
    assert [each["layers"] for each in half] == [LAYERS // 2]
    assert [each["layers"] for each in whole] == [all_layers]
    assert (tokens, reason) == (LONG, "length")


def streamed(daemon: StartedDaemon, begun: Event) -> tuple[int, str | None]:
    """One long reply: its tokens by the usage it ends with, and why it ended."""
    question = {
        "model": MODEL.name,
        "prompt": "Once upon a time",
        "max_tokens": LONG,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tokens, reason = 0, None
    with httpx.stream(
        "POST", f"{daemon.base}/v1/completions", json=question, timeout=2 * WITHIN_S
    ) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            begun.set()
            for choice in chunk.get("choices", ()):
                reason = choice.get("finish_reason") or reason
            if usage := chunk.get("usage"):
                tokens = usage["completion_tokens"]
    return tokens, reason
