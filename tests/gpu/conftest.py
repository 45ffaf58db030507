"""The CUDA engine on an NVIDIA GPU, built there; scripts/gpu_check.sh runs this folder."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from tests.fakes.tiny_models import TinyModel, write

ROOT = Path(__file__).parents[2]
BUILD_S = 480.0  # for one architecture, on 16 cores
LAYERS = 24

# 1.6 GB of random weights: enough for a rate that says something, written in seconds.
MODEL = TinyModel(
    "noise",
    "llama",
    2048,
    LAYERS,
    {
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.head_count": 16,
        "attention.head_count_kv": 4,
        "feed_forward_length": 8192,
        "rope.dimension_count": 128,
    },
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the card; the first test waits for the build."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(BUILD_S + 120.0))


@pytest.fixture(scope="session")
def engine_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The llama-server for this card alone; of LLAMA_CPP_SOURCE, where that is told."""
    if told := os.environ.get("GPU_ENGINE"):
        return Path(told)
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"]
    capability = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    architecture = capability.stdout.strip().replace(".", "")
    prefix = tmp_path_factory.mktemp("engines")
    argv = ["bash", str(ROOT / "scripts" / "build_backends.sh"), "cuda", "--one-variant"]
    argv += ["--cuda-arch", architecture, "--prefix", str(prefix)]
    subprocess.run(argv, timeout=BUILD_S, check=True)
    return (prefix / "cuda" / "current" / "bin" / "llama-server").resolve(strict=True)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one model."""
    folder = tmp_path_factory.mktemp("models")
    write(MODEL, folder)
    return folder


@pytest.fixture(scope="session")
def daemon(engine_path: Path, model_dir: Path) -> Iterator[StartedDaemon]:
    """With the CUDA engine, 4096 tokens of context and two slots."""
    config = f"""
[models]
context = 4096
parallel = 2
keep_alive = "1h"

[backends.cuda]
path = "{engine_path}"
"""
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        started_daemon(Path(folder), model_dirs=[model_dir], config=config) as daemon,
    ):
        daemon.wait_for_engines()
        yield daemon
