"""Each fault while a model moves: what the caller in mid-answer saw, and that nothing is left.

The engine is the fake one, which saves no slots: its replies are written again.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fakes.c_libraries import built
from tests.fakes.processes import is_gone
from tests.integration.fault_scene import (
    MODEL,
    NVML,
    SAID,
    WITHIN_S,
    Caller,
    Ended,
    Scene,
    full_disk,
    playing,
)

TARGET_LOADS_S, STRUCK_LOADS_S = 1.0, 20.0
LOAD_TIMEOUT = 'load_timeout = "3s"'


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A daemon on the fake engine whose loads may stall for three seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        playing(Path(folder), fleet=LOAD_TIMEOUT) as scene,
    ):
        yield scene


@pytest.fixture(params=["hang", "mismatch"])
def driver_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """The same beside an NVIDIA driver that is broken in one way."""
    built(NVML, tmp_path / "libnvidia-ml.so.1")
    environ = {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_NVML": request.param}
    with (
        tempfile.TemporaryDirectory(prefix="ios-") as folder,
        playing(Path(folder), fleet=LOAD_TIMEOUT, environ=environ) as scene,
    ):
        yield scene


def migrating(scene: Scene, **faults: object) -> tuple[Caller, psutil.Process, psutil.Process]:
    """A caller in mid-answer, the child that answers, and the one that is to follow it."""
    scene.also(token_s=0.3)
    caller = scene.call()
    assert caller.began.wait(WITHIN_S)
    source = scene.child()
    scene.also(**{"load_s": TARGET_LOADS_S, **faults})
    path = f"{scene.daemon.admin_socket}"
    scene.posts.append(scene.threads.submit(_migrate, path))
    scene.until(lambda: len(pids(scene)) == 2)
    (target,) = pids(scene) - {source.pid}
    return caller, source, psutil.Process(target)


def _migrate(admin_socket: str) -> int:
    transport = httpx.HTTPTransport(uds=admin_socket)
    with httpx.Client(transport=transport, base_url="http://admin", timeout=60) as client:
        return client.post("/migrate", json={"model": MODEL, "parallel": 2}).status_code


def pids(scene: Scene) -> set[int]:
    """Of the model's children."""
    return {i["pid"] for i in scene.daemon.status()["instances"] if i["pid"]}


def slots(scene: Scene) -> list[int]:
    """Of the model's instances."""
    return [i["slots"] for i in scene.daemon.status()["instances"] if i["model"] == MODEL]


def whole(ended: Ended) -> bool:
    """All that was asked for came, and no error."""
    return ended == Ended(200, SAID, "", is_whole=True)


def test_nothing_is_lost_where_nothing_goes_wrong(scene: Scene) -> None:
    caller, source, _ = migrating(scene)

    assert scene.posts[-1].result(WITHIN_S) == 200

    assert whole(caller.ended())
    scene.until(lambda: is_gone(source.pid))
    assert slots(scene) == [2]
    scene.leaves_nothing()


@pytest.mark.parametrize("fault", ["killed", "stopped", "oom"])
def test_a_target_that_fails_leaves_the_source_to_answer(scene: Scene, fault: str) -> None:
    # A fault from outside has to find it loading, however late it comes.
    faults = {"die_while_loading": "oom"} if fault == "oom" else {"load_s": STRUCK_LOADS_S}
    caller, source, target = migrating(scene, **faults)

    if fault == "killed":
        target.kill()
    elif fault == "stopped":
        target.suspend()

    assert scene.posts[-1].result(WITHIN_S) == 409
    assert whole(caller.ended())
    assert scene.pid() == source.pid
    scene.until(lambda: is_gone(target.pid))
    scene.leaves_nothing()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["killed", "stopped", "oom"])
def test_a_source_that_fails_is_followed_by_its_target(scene: Scene, fault: str) -> None:
    scene.also(last_words="host_oom")
    caller, source, target = migrating(scene)

    signals = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "oom": signal.SIGUSR1}
    source.send_signal(signals[fault])

    assert whole(caller.ended(60.0))
    scene.until(lambda: is_gone(source.pid))
    assert pids(scene) == {target.pid}
    scene.leaves_nothing()


def test_a_broken_driver_holds_up_no_move(driver_scene: Scene) -> None:
    caller, _, target = migrating(driver_scene)

    assert driver_scene.posts[-1].result(WITHIN_S) == 200
    assert whole(caller.ended())
    assert pids(driver_scene) == {target.pid}
    driver_scene.leaves_nothing()


def test_a_full_disk_costs_events_but_neither_the_move_nor_the_answer(scene: Scene) -> None:
    caller, _, target = migrating(scene)

    with full_disk(scene):
        assert scene.posts[-1].result(WITHIN_S) == 200
        assert whole(caller.ended())
    assert pids(scene) == {target.pid}
    scene.leaves_nothing()


def test_sockets_that_vanish_cost_nobody_an_answer(scene: Scene) -> None:
    caller, _, _ = migrating(scene)

    for path in (scene.daemon.folder / "run").rglob("i*-*.sock"):
        path.unlink()

    assert whole(caller.ended(60.0))
    assert whole(scene.says())
    scene.leaves_nothing()


def test_a_caller_who_leaves_holds_up_nothing(scene: Scene) -> None:
    caller, _, target = migrating(scene)

    caller.leave.set()

    assert scene.posts[-1].result(WITHIN_S) == 200
    assert pids(scene) == {target.pid}
    scene.leaves_nothing()


def test_an_unload_ends_both_and_lets_the_answer_end(scene: Scene) -> None:
    caller, _, _ = migrating(scene)

    scene.post("/unload")

    assert whole(caller.ended())
    scene.until(lambda: scene.state() is None)
    scene.leaves_nothing()


def test_a_reload_that_changes_the_model_waits_for_the_move(scene: Scene) -> None:
    caller, _, _ = migrating(scene)

    scene.configure(models={MODEL: 256})

    assert whole(caller.ended())
    assert scene.posts[-1].result(WITHIN_S) == 200
    scene.until(lambda: scene.context() in (None, 256))
    scene.leaves_nothing()


def test_no_child_outlives_a_daemon_killed_meanwhile(scene: Scene) -> None:
    _, source, target = migrating(scene)

    scene.daemon.process.kill()

    scene.until(lambda: is_gone(source.pid) and is_gone(target.pid))


def test_a_daemon_told_to_stop_meanwhile_ends_in_time(scene: Scene) -> None:
    _, source, target = migrating(scene)

    os.kill(scene.daemon.process.pid, signal.SIGTERM)

    assert scene.daemon.process.wait(30) == 0
    assert is_gone(source.pid)
    assert is_gone(target.pid)
