"""The CPU backend from source: what it is made of, that it answers, and on which CPUs."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from planners.backends import Engine
from scripts.started_daemon import started_daemon
from supervisor.engines.backends import Finding, find_engines
from supervisor.engines.quickstart import quickstart_model_dir
from supervisor.engines.trial import TrialLimits
from tests.backends.conftest import build_folder

PROGRAMS = (
    "llama-server",
    "llama-fit-params",
    "llama-bench",
    "llama-gguf-split",
    "ggml-rpc-server",
)
EMULATED = TrialLimits(ask_s=120.0, decode_s=300.0)
NO_AVX512 = "Haswell-noTSX"
NO_AVX = "Nehalem"

Emulated = Callable[[Path, str], Path]


async def tried(path: Path, folder: Path) -> Finding:
    return await find_engines(
        configured=(("built", str(path), ()),),
        state_dir=folder,
        search_path="",
        quickstart=False,
        limits=EMULATED,
    )


def test_a_build_holds_all_programs_and_its_manifest_every_file(cpu: Path) -> None:
    manifest = json.loads((cpu / "manifest.json").read_text())

    for name in PROGRAMS:
        assert os.access(cpu / "bin" / name, os.X_OK)
    assert {f"bin/{name}" for name in PROGRAMS} <= set(manifest["files"])
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((cpu / name).read_bytes()).hexdigest() == digest
    assert manifest["commit"].startswith("0c1e57098bba")
    assert manifest["commit"][:12] in manifest["found"]["version"]
    assert any(name.startswith("libggml-cpu") for name in manifest["found"]["backends_loaded"])


def test_no_path_of_the_build_machine_is_in_the_programs(cpu: Path) -> None:
    here = os.fsencode(build_folder())

    for file in (cpu / "bin").iterdir():
        assert here not in file.read_bytes(), file.name


def test_there_is_a_library_for_old_and_new_generations_of_cpus(cpu: Path) -> None:
    names = {file.name for file in (cpu / "bin").glob("libggml-cpu-*")}

    assert {"libggml-cpu-haswell.so", "libggml-cpu-x64.so", "libggml-cpu-zen4.so"} <= names


def test_none_is_chosen_whose_tiles_a_sandbox_may_deny(cpu: Path) -> None:
    assert not (cpu / "bin" / "libggml-cpu-sapphirerapids.so").exists()


def test_the_daemon_answers_with_it(cpu: Path) -> None:
    models = quickstart_model_dir()
    assert models is not None, "no quickstart model: run make test"
    config = f'[backends.cpu]\npath = "{cpu}/bin/llama-server"\n'
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        started_daemon(
            Path(folder),
            model_dirs=[models],
            config=config,
            environ={"GGML_VK_VISIBLE_DEVICES": ""},
        ) as daemon,
    ):
        daemon.wait_for_engines()
        question = {
            "model": "smollm2-135m-instruct.q4_1",
            "prompt": "The capital of France is",
            "max_tokens": 4,
            "temperature": 0,
        }
        reply = httpx.post(f"{daemon.base}/v1/completions", json=question, timeout=120)
        (instance,) = daemon.status()["instances"]
        words = Path(f"/proc/{instance['pid']}/cmdline").read_bytes().split(b"\0")

    assert "Paris" in reply.json()["choices"][0]["text"]
    assert os.fsencode(cpu / "bin" / "llama-server") in words


async def test_the_portable_build_decodes_on_a_cpu_without_avx512(
    cpu: Path, emulated: Emulated, tmp_path: Path
) -> None:
    found = await tried(emulated(cpu, NO_AVX512), tmp_path / "state")

    assert found.rejected == ()
    assert isinstance(found.engines[0], Engine)


async def test_the_portable_build_decodes_on_a_cpu_without_avx(
    cpu: Path, emulated: Emulated, tmp_path: Path
) -> None:
    found = await tried(emulated(cpu, NO_AVX), tmp_path / "state")

    assert found.rejected == ()


@pytest.mark.parametrize(("cpu_name", "decodes"), [(NO_AVX512, True), (NO_AVX, False)])
async def test_a_build_for_newer_cpus_is_refused_on_an_older_one(
    one_variant: Path, emulated: Emulated, tmp_path: Path, cpu_name: str, decodes: bool
) -> None:
    found = await tried(emulated(one_variant, cpu_name), tmp_path / "state")

    assert bool(found.engines) is decodes
    if not decodes:
        assert "built for another CPU (SIGILL" in found.rejected[0].reason
