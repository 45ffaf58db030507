"""The real daemon, the real engine, the real model, as processes."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import packaged_engine, quickstart_model_dir
from tests.fakes.system_parts import need_mesa

Start = Callable[..., StartedDaemon]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the real engine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.llama)


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The folder of the quickstart's model. Missing parts fail: make test installs them."""
    folder = quickstart_model_dir()
    assert folder is not None, "no quickstart model: run make test, or scripts/quickstart.py"
    assert packaged_engine() is not None, "no quickstart engine: run make test"
    return folder


@pytest.fixture(scope="session")
def state_dir() -> Iterator[Path]:
    """One state folder for all daemons that nothing else tells apart: the engine is tried once."""
    with tempfile.TemporaryDirectory(prefix="ios-state-") as folder:
        yield Path(folder)


@pytest.fixture
def start(model_dir: Path, state_dir: Path) -> Iterator[Start]:
    """Starts daemons, each in a short folder of its own; all are stopped when the test ends."""
    with ExitStack() as held:

        def started(
            *,
            config: str = "",
            model_dirs: Sequence[Path] = (model_dir,),
            options: Sequence[str] = (),
            environ: Mapping[str, str] | None = None,
        ) -> StartedDaemon:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="ios-")))
            (folder / "state").mkdir()
            if (state_dir / "engines.json").exists():
                shutil.copy(state_dir / "engines.json", folder / "state")
            daemon = held.enter_context(
                started_daemon(
                    folder,
                    model_dirs=model_dirs,
                    config=config,
                    options=options,
                    environ=environ,
                )
            )
            daemon.wait_for_engines()
            shutil.copy(folder / "state" / "engines.json", state_dir)
            return daemon

        yield started


@pytest.fixture(scope="module")
def daemon(model_dir: Path) -> Iterator[StartedDaemon]:
    """One daemon for all tests of a module that only ask it things."""
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        started_daemon(Path(folder), model_dirs=[model_dir]) as daemon,
    ):
        daemon.wait_for_engines()
        yield daemon


@pytest.fixture
def http(daemon: StartedDaemon) -> Iterator[httpx.Client]:
    """A plain HTTP client of the module's daemon."""
    with httpx.Client(base_url=daemon.base, timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture
def vulkan_environ() -> dict[str, str]:
    """Makes Mesa's software device visible to the engine, which hides CPUs that pose as GPUs."""
    need_mesa()
    return {"GGML_VK_VISIBLE_DEVICES": "0"}
