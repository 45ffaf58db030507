"""Models that come and go in the real daemon: chatted with at once, and whole after any kill."""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.store.layout import manifest_files, read_manifest_at
from tests.fakes.ollama_store import IMAGE, OllamaStore, as_it_lies

MODEL = "SmolLM2-135M-Instruct.Q4_1"
ROUNDS = int(os.environ.get("KILL_ROUNDS", "1"))
"""Of a kill in the middle of each change: five are twenty kills, one is the suite's share."""
SEED = 20261201
BEGUN_S = 30.0  # for that trace to be there
TRIES = 6  # to meet a change while it is under way, each sooner than the one before


@pytest.fixture(scope="module")
def weights(model_dir: Path) -> bytes:
    """The quickstart's model."""
    (path,) = model_dir.rglob(f"{MODEL}.gguf")
    return path.read_bytes()


def asked(base: str, path: str, body: Any, *, method: str = "POST") -> httpx.Response:
    return httpx.request(method, base + path, json=body, timeout=120, trust_env=False)


def chat(base: str, name: str) -> dict[str, Any]:
    body = {
        "model": name, "messages": [{"role": "user", "content": "Say hello."}], "stream": False,
        "options": {"num_predict": 4, "temperature": 0},
    }  # fmt: skip
    reply = asked(base, "/api/chat", body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_a_model_of_an_ollama_store_is_served_and_the_store_stays_as_it_was(
    start: Callable[..., StartedDaemon], weights: bytes, tmp_path: Path
) -> None:
    store = OllamaStore(tmp_path / "ollama")
    long = "You are a test. " * 20
    store.add(
        "registry.ollama.ai/library/tiny/135m", model=weights,
        layers=[("system", long.encode())], params={"num_ctx": 2048, "stop": ["<|im_end|>"]},
    )  # fmt: skip
    before = as_it_lies(store.folder)
    times = {path: path.stat() for path in store.folder.rglob("*")}

    daemon = start(model_dirs=[store.folder])
    with_system = chat(daemon.base, "tiny:135m")["prompt_eval_count"]
    asked(daemon.base, "/api/copy", {"source": "tiny:135m", "destination": "bare"})
    asked(daemon.base, "/api/create", {"model": "brief", "from": "tiny:135m", "system": "Hi."})
    brief = chat(daemon.base, "brief")["prompt_eval_count"]
    refused = asked(daemon.base, "/api/delete", {"model": "tiny:135m"}, method="DELETE")

    assert with_system > brief + 60
    assert refused.status_code == 403
    assert as_it_lies(store.folder) == before
    for path, was in times.items():
        assert path.stat().st_mtime_ns == was.st_mtime_ns
        assert path.stat().st_mode == was.st_mode


def test_a_pulled_model_answers_at_once_and_a_deleted_one_is_gone(
    start: Callable[..., StartedDaemon], weights: bytes
) -> None:
    with registry(weights) as at:
        daemon = start()
        pulled = daemon.ctl("pull", "--insecure", f"{at}/library/tiny:1")
        answer = chat(daemon.base, f"{at}/library/tiny:1")
        listed = daemon.ctl("list").stdout
        deleted = daemon.ctl("rm", f"{at}/library/tiny:1")
        shown = asked(daemon.base, "/api/show", {"model": f"{at}/library/tiny:1"})

    assert (pulled.returncode, pulled.stdout.splitlines()[-1]) == (0, "success"), pulled.stderr
    assert answer["message"]["content"]
    assert f"{at}/library/tiny:1" in listed
    assert deleted.returncode == 0, deleted.stderr
    assert shown.status_code == 404
    assert as_it_lies(daemon.folder / "state" / "store") == {}


@pytest.mark.timeout(600)  # five daemons one after another, on however busy a machine
@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_no_kill_in_the_middle_of_a_change_leaves_a_broken_store(
    model_dir: Path, weights: bytes, round_number: int
) -> None:
    chance = random.Random(SEED + round_number)
    other = weights + bytes(32)  # whose blob no copy of the model brings along
    with tempfile.TemporaryDirectory(prefix="ios-") as name, registry(other) as at:
        folder = Path(name)
        for change in (*CHANGES, _pull):
            after_s = chance.uniform(0, CHANGES[change])
            assert any(
                _is_killed_in(folder, model_dir, change, at, after_s=after_s / 2**n)
                for n in range(TRIES)
            ), f"{change.__name__} was over before each kill"
        with started_daemon(folder, model_dirs=[model_dir]) as daemon:
            daemon.wait_for_engines()
            _check(daemon, folder / "state" / "store")
            whole = asked(daemon.base, "/api/pull", {**_named(at), "stream": False})
            assert whole.json() == {"status": "success"}
            assert chat(daemon.base, _named(at)["model"])["done"]
            for model in asked_models(daemon.base):
                if model != f"{MODEL}:latest":
                    asked(daemon.base, "/api/delete", {"model": model}, method="DELETE")
            left = as_it_lies(folder / "state" / "store")
            assert not [path for path in left if path.startswith("manifests/")]


def _named(at: str) -> dict[str, Any]:
    return {"model": f"{at}/library/tiny:1", "insecure": True}


def _pull(base: str, at: str) -> None:
    asked(base, "/api/pull", _named(at))


def _create(base: str, at: str) -> None:
    for text in ("one", "two"):
        asked(base, "/api/create", {"model": "made", "from": MODEL, "system": text})


def _copy(base: str, at: str) -> None:
    for number in range(50):
        asked(base, "/api/copy", {"source": "base", "destination": f"copy:{number}"})


def _delete(base: str, at: str) -> None:
    for name in asked_models(base):
        if name != "base:latest":
            asked(base, "/api/delete", {"model": name}, method="DELETE")


CHANGES = {_pull: 4.0, _create: 0.5, _copy: 0.3, _delete: 0.2}
"""How long each takes, from the first trace of it on disk to its end, in seconds."""


def asked_models(base: str) -> list[str]:
    tags = httpx.get(f"{base}/api/tags", timeout=30, trust_env=False).json()["models"]
    return [model["name"] for model in tags]


def _prepare(daemon: StartedDaemon, at: str) -> None:
    """`base` and copies of it are there, what is pulled and made is not: every change does work."""
    base = daemon.base
    told = {"source": MODEL, "destination": "base"}
    assert asked(base, "/api/copy", told).status_code == 200
    for number in range(3):
        told = {"source": "base", "destination": f"old:{number}"}
        assert asked(base, "/api/copy", told).status_code == 200
    for name in (_named(at)["model"], "made"):
        asked(base, "/api/delete", {"model": name}, method="DELETE")


def _is_killed_in(
    folder: Path, model_dir: Path, change: Callable[[str, str], None], at: str, *, after_s: float
) -> bool:
    """Whether a daemon's SIGKILL, some time after its first trace on disk, broke the change off."""
    with started_daemon(folder, model_dirs=[model_dir]) as daemon:
        daemon.wait_until_open()
        _prepare(daemon, at)
        _check(daemon, folder / "state" / "store")
        return _breaks_off(daemon, change, at, after_s=after_s)


def _breaks_off(
    daemon: StartedDaemon, change: Callable[[str, str], None], at: str, *, after_s: float
) -> bool:
    base, store = daemon.base, daemon.folder / "state" / "store"
    before = _traces(store)
    broken_off = threading.Event()

    def run() -> None:
        try:
            change(base, at)
        except httpx.HTTPError:
            broken_off.set()

    changing = threading.Thread(target=run)
    changing.start()
    deadline_s = time.monotonic() + BEGUN_S
    while changing.is_alive() and _traces(store) == before and time.monotonic() < deadline_s:
        time.sleep(0.002)
    time.sleep(after_s)
    daemon.process.kill()
    daemon.process.wait()
    changing.join(30)
    assert not changing.is_alive()
    return broken_off.is_set()


def _traces(store: Path) -> set[str]:
    """Every file of the store, unfinished ones among them."""
    return {str(path) for path in store.rglob("*")}


def _check(daemon: StartedDaemon, store: Path) -> None:
    """Every manifest has its blobs, whole; every blob is what it is called; all are offered."""
    names = set()
    for file in manifest_files(str(store)):
        manifest, _ = read_manifest_at(file.path)
        names.add(file.name.short)
        for layer in manifest.all_layers:
            assert (store / "blobs" / layer.digest.file_name).stat().st_size == layer.size_bytes
    for blob in (store / "blobs").iterdir():
        if "partial" not in blob.name:
            assert blob.name == f"sha256-{hashlib.sha256(blob.read_bytes()).hexdigest()}"
    assert names <= set(asked_models(daemon.base))
    broken = json.loads(daemon.ctl("models", "--json").stdout)["broken"]
    assert [each for each in broken if str(store) in each["path"]] == []


@contextmanager
def registry(weights: bytes) -> Iterator[str]:
    """HOST:PORT of a registry with the one model library/tiny:1, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="ios-reg-") as name:
        folder = Path(name)
        _lay_out(folder, weights)
        argv = [sys.executable, "-m", "tests.fakes.file_registry", name]
        root = Path(__file__).parents[2]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=root, text=True) as process:
            assert process.stdout is not None
            try:
                yield f"127.0.0.1:{int(process.stdout.readline())}"
            finally:
                process.kill()


def _lay_out(folder: Path, weights: bytes) -> None:
    """The model's files at the paths by which they are asked for."""
    blobs = folder / "v2/library/tiny/blobs"
    blobs.mkdir(parents=True)

    def layer(kind: str, data: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    config = layer("application/vnd.docker.container.image.v1+json", b'{"model_format":"gguf"}')
    layers = [layer(f"{IMAGE}model", weights), layer(f"{IMAGE}system", b"Be brief.")]
    told = {"schemaVersion": 2, "mediaType": "m", "config": config, "layers": layers}
    manifests = folder / "v2/library/tiny/manifests"
    manifests.mkdir(parents=True)
    (manifests / "1").write_text(json.dumps(told))
