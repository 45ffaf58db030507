"""A daemon with the quickstart's model alone: what most benches ask."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir


@contextmanager
def quickstart_daemon(*, config: str = "") -> Iterator[tuple[StartedDaemon, str]]:
    """In a folder of its own, its engines tried; with it the model's name."""
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    with (
        tempfile.TemporaryDirectory(prefix="ios-bench-") as folder,
        started_daemon(Path(folder), model_dirs=[model_dir], config=config) as daemon,
    ):
        daemon.wait_for_engines()
        models = httpx.get(f"{daemon.base}/v1/models", trust_env=False).raise_for_status()
        yield daemon, str(models.json()["data"][0]["id"])


def loaded(daemon: StartedDaemon, model: str) -> tuple[int, str]:
    """The process of the model, loaded now if it was not, and the socket it listens on."""
    assert daemon.ctl("load", model).returncode == 0
    (instance,) = daemon.status()["instances"]
    argv = psutil.Process(instance["pid"]).cmdline()
    return instance["pid"], argv[argv.index("--host") + 1]
