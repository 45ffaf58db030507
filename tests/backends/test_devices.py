"""Backends for devices that no build machine need have."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from planners.backends import Engine
from supervisor.engines.backends import find_engines
from supervisor.engines.quickstart import quickstart_model_dir
from supervisor.engines.trial import TrialLimits
from tests.backends.conftest import Built, Run, build_folder
from tests.fakes.system_parts import need_mesa

ANSWER_S = 300.0  # 1.5 tokens/s on the software device, by itself
KERNEL = "llama.cpp/ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir/scale.cu.o"


@pytest.fixture(scope="session")
def vulkan(script: Run, built: Built, cpu: Path) -> Path:
    """After the CPU's, whose object files it shares; with newer tools where ours are old."""
    if "fetch_toolchain.sh vulkan" in script("build_backends.sh", "--list").stdout:
        fetched = script("fetch_toolchain.sh", "vulkan")
        assert fetched.returncode == 0, fetched.stdout
    return built("vulkan")


async def test_vulkan_sees_mesas_software_device(
    vulkan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_mesa()
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")

    found = await find_engines(
        configured=(("built", str(vulkan / "bin" / "llama-server"), ()),),
        state_dir=tmp_path,
        search_path="",
        quickstart=False,
        limits=TrialLimits(ask_s=120.0, decode_s=300.0),
    )

    (engine,) = found.engines
    assert isinstance(engine, Engine)
    assert engine.backend == "vulkan"
    assert [device.name for device in engine.devices] == ["Vulkan0"]
    assert "llvmpipe" in engine.devices[0].description


def test_vulkan_answers_with_every_layer_on_mesas_software_device(vulkan: Path) -> None:
    need_mesa()
    with offloaded(vulkan) as (client, log):
        question = {"prompt": "The capital of France is", "n_predict": 2, "temperature": 0}
        reply = client.post("/completion", json=question)

        assert "Paris" in reply.json()["content"]
        assert "offloaded 31/31 layers to GPU" in log.read_text()


@contextmanager
def offloaded(build: Path) -> Iterator[tuple[httpx.Client, Path]]:
    """The real model, all of it on Vulkan0, and the engine's log."""
    folder = quickstart_model_dir()
    assert folder is not None, "no quickstart model: run make test"
    model = next(folder.glob("*.gguf"))
    with tempfile.TemporaryDirectory(prefix="ios-") as name:
        socket, log = Path(name) / "s.sock", Path(name) / "log"
        argv = [str(build / "bin" / "llama-server"), "--model", str(model), "--host", str(socket)]
        argv += ["--device", "Vulkan0", "--n-gpu-layers", "99", "--ctx-size", "256", "-lv", "4"]
        argv += ["--fit", "off", "--parallel", "1", "--no-warmup"]
        with log.open("wb") as out:
            child = subprocess.Popen(
                argv,
                cwd=name,
                env={**os.environ, "GGML_VK_VISIBLE_DEVICES": "0"},
                stdout=out,
                stderr=out,
            )
        try:
            transport = httpx.HTTPTransport(uds=str(socket))
            with httpx.Client(
                transport=transport, base_url="http://engine", timeout=ANSWER_S
            ) as client:
                give_up_s = time.monotonic() + ANSWER_S
                while not socket.exists() or client.get("/health").status_code != 200:
                    assert child.poll() is None, log.read_text()[-2000:]
                    assert time.monotonic() < give_up_s
                    time.sleep(0.1)
                yield client, log
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()


def test_cuda_configures_and_compiles_a_kernel_with_tools_out_of_packages(script: Run) -> None:
    fetched = script("fetch_toolchain.sh", "cuda")
    assert fetched.returncode == 0, fetched.stdout

    configured = script(
        "build_backends.sh", "cuda", "--one-variant", "--cuda-arch", "90", "--configure"
    )

    assert configured.returncode == 0, configured.stdout
    assert "ios: backends ggml-cpu;ggml-cuda;ggml-rpc" in configured.stdout
    tree = Path(configured.stdout.splitlines()[-1].removeprefix("configured: "))
    assert shutil.which("ninja") is not None, "needs ninja: apt install ninja-build"
    (tree / KERNEL).unlink(missing_ok=True)
    compiled = subprocess.run(
        ["cmake", "--build", str(tree), "--target", KERNEL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    assert b".nv_fatbin" in (tree / KERNEL).read_bytes()


@pytest.mark.parametrize(
    ("backend", "needs"),
    [("hip", "ROCm 6.1 or newer at /nonexistent"), ("metal", "a Mac")],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="has Metal")
def test_a_backend_without_its_tools_says_what_it_needs(
    script: Run, monkeypatch: pytest.MonkeyPatch, backend: str, needs: str
) -> None:
    monkeypatch.setenv("ROCM_PATH", "/nonexistent")

    done = script("build_backends.sh", backend, "--configure")

    assert done.returncode == 1
    assert f"{backend} needs {needs}" in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("backend", "says"),
    [("metal", "this build needs a Mac"), ("hip", "ROCm"), ("tpu", "IOS_BACKEND is 'tpu'")],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="has Metal")
def test_the_table_itself_refuses_what_cannot_be(
    script: Run, tmp_path: Path, backend: str, says: str
) -> None:
    script("build_backends.sh", "cpu", "--one-variant", "--configure")  # which fetches the source
    table = Path(__file__).parents[2] / "build" / "llama.cpp.cmake"
    (tmp_path / "CMakeLists.txt").write_text(
        f'cmake_minimum_required(VERSION 3.21)\nproject(x C CXX)\ninclude("{table}")\n'
    )
    told = subprocess.run(
        [
            *("cmake", "-Wno-dev", "-S", str(tmp_path), "-B", str(tmp_path / "tree")),
            f"-DIOS_SOURCE_DIR={source_folder()}",
            f"-DIOS_BACKEND={backend}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 1
    assert says in told.stderr


def source_folder() -> Path:
    """Where the build script unpacked the source."""
    return next((build_folder() / "source").glob("0c1e57098bba*"))
