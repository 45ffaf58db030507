"""Each fault in each state: what the caller saw, and that nothing of it is left.

A dead process is one that is gone, or waits to be reaped. The states are those of one model's
instance; a fault that belongs to no process of its own strikes while the model is in that state.
"""

import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.c_libraries import built
from tests.integration.fault_scene import (
    AT_LENGTH,
    LOOK_S,
    MODEL,
    NVML,
    OTHER,
    SAID,
    TOKEN_S,
    WITHIN_S,
    Caller,
    Ended,
    Scene,
    Stage,
    State,
    full_disk,
    kill,
    until_gone,
)

STATES = pytest.mark.parametrize("state", State, ids=lambda state: state.value)
NOT_LOADING = pytest.mark.parametrize(
    "state", [State.READY, State.DRAINING, State.ANSWERING], ids=lambda state: state.value
)
DAEMON_STOP_S = 15.0
GONE_S = 5.0  # for what the kernel or an idle daemon does at once, on a busy machine


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """For all scenes whose daemon is as any other."""
    with Stage(fleet='load_timeout = "6s"') as stage:
        yield stage


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    """A daemon with two models on the fake engine; another one where the last did not live on."""
    with stage.playing() as scene:
        yield scene


@pytest.fixture(scope="module", params=["hang", "mismatch"])
def driver_stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """For all scenes with an NVIDIA driver that is broken in one way."""
    folder = tmp_path_factory.mktemp("driver")
    built(NVML, folder / "libnvidia-ml.so.1")
    environ = {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": request.param}
    with Stage(environ=environ) as stage:
        yield stage


def whole(ended: Ended) -> bool:
    """All that was asked for came, and no error."""
    return ended == Ended(200, SAID, "", is_whole=True)


def told(ended: Ended) -> bool:
    """The answer broke off, or never came, and its caller was told why."""
    return bool(ended.error) and ended.is_whole


def test_a_child_killed_while_loading_is_replaced_and_serves_who_waited(scene: Scene) -> None:
    caller = scene.into(State.LOADING)
    assert caller is not None

    kill(scene.child())

    assert whole(caller.ended())
    scene.leaves_nothing()


def test_a_child_killed_while_ready_is_replaced_for_the_next_caller(scene: Scene) -> None:
    scene.into(State.READY)
    first = scene.pid()

    kill(scene.child())

    assert whole(scene.says())
    assert scene.pid() != first
    scene.leaves_nothing()


def test_a_child_killed_while_draining_tells_the_caller_it_answered(scene: Scene) -> None:
    caller = scene.into(State.DRAINING, tokens=AT_LENGTH)
    assert caller is not None

    kill(scene.child())

    assert told(caller.ended())
    scene.until(lambda: scene.state() is None)
    scene.leaves_nothing()


def test_a_child_stopped_while_loading_is_replaced_and_serves_who_waited(scene: Scene) -> None:
    caller = scene.into(State.LOADING)
    assert caller is not None
    first = scene.child()

    first.suspend()

    assert whole(caller.ended())
    until_gone(first, within_s=GONE_S)
    scene.leaves_nothing()


def test_a_child_stopped_while_ready_is_replaced_and_serves_who_asked(scene: Scene) -> None:
    scene.set_fleet('hang_timeout = "10s"')
    scene.into(State.READY)
    first = scene.child()

    first.suspend()

    assert whole(scene.call().ended(60.0))
    until_gone(first, within_s=GONE_S)
    (reason,) = scene.events("instance.hung")
    assert reason
    scene.leaves_nothing()


@NOT_LOADING
def test_a_load_that_dies_of_memory_leaves_the_others_alone(scene: Scene, state: State) -> None:
    caller, pid = scene.into(state), scene.pid()
    scene.order(die_while_loading="oom")

    refused = scene.says(OTHER)

    assert told(refused)
    assert "memory" in refused.error
    assert caller is None or whole(caller.ended())
    assert state is not State.READY or scene.pid() == pid
    scene.leaves_nothing()


def test_a_load_that_dies_of_memory_tells_who_waited(scene: Scene) -> None:
    scene.order(die_while_loading="oom")

    refused = scene.says()

    assert told(refused)
    assert "ErrorOutOfDeviceMemory" in refused.error or "Device memory" in refused.error
    scene.leaves_nothing()


def test_a_child_out_of_memory_before_its_first_word_is_replaced_unseen(scene: Scene) -> None:
    scene.order(die_before_reply=True, last_words="host_oom", launches=1)

    assert whole(scene.says())
    scene.leaves_nothing()


def test_a_child_out_of_memory_in_mid_answer_costs_its_caller_nothing(scene: Scene) -> None:
    scene.order(die_at_byte=1200, last_words="host_oom", launches=1)

    assert whole(scene.says())
    assert len(scene.events("stream.resumed")) == 1
    scene.leaves_nothing()


def test_a_child_killed_in_mid_answer_costs_its_caller_nothing(scene: Scene) -> None:
    scene.order(token_s=TOKEN_S)
    caller = scene.call()
    assert caller.began.wait(WITHIN_S)

    kill(scene.child())

    assert whole(caller.ended())
    (reason,) = scene.events("stream.resumed")
    assert reason
    scene.leaves_nothing()


def test_a_child_stopped_in_mid_answer_costs_its_caller_nothing(scene: Scene) -> None:
    scene.set_fleet('hang_timeout = "10s"')
    scene.order(token_s=TOKEN_S)
    caller = scene.call()
    assert caller.began.wait(WITHIN_S)
    first = scene.child()

    first.suspend()

    assert whole(caller.ended(60.0))
    until_gone(first, within_s=GONE_S)
    scene.leaves_nothing()


def test_a_child_out_of_memory_while_draining_tells_its_caller(scene: Scene) -> None:
    scene.order(die_at_byte=3000, last_words="host_oom", launches=1)
    caller = scene.into(State.DRAINING, tokens=AT_LENGTH)
    assert caller is not None

    assert told(caller.ended())
    scene.until(lambda: scene.state() is None)
    scene.leaves_nothing()


def test_a_child_killed_in_mid_answer_whose_successor_has_no_memory_tells_its_caller(
    scene: Scene,
) -> None:
    scene.order(token_s=TOKEN_S)
    caller = scene.call()
    assert caller.began.wait(WITHIN_S)
    scene.order(die_while_loading="oom")

    kill(scene.child())

    ended = caller.ended(60.0)
    assert told(ended)
    assert "memory" in ended.error
    assert ended.text
    scene.leaves_nothing()


@STATES
def test_a_broken_driver_costs_nobody_an_answer(driver_stage: Stage, state: State) -> None:
    with driver_stage.playing() as scene:
        caller = scene.into(state)

        assert whole(caller.ended() if caller else scene.says())
        scene.leaves_nothing()


def test_a_broken_driver_keeps_no_stream_from_outliving_its_child(driver_stage: Stage) -> None:
    with driver_stage.playing() as scene:
        caller = scene.answering()

        kill(scene.child())

        assert whole(caller.ended())
        scene.leaves_nothing()


def test_a_full_disk_keeps_no_stream_from_outliving_its_child(scene: Scene) -> None:
    caller = scene.answering()
    with full_disk(scene):
        kill(scene.child())

        assert whole(caller.ended())
    scene.leaves_nothing()


@STATES
def test_a_full_disk_costs_events_but_no_answer(scene: Scene, state: State) -> None:
    caller = scene.into(state)
    with full_disk(scene):
        assert caller is None or whole(caller.ended())
        for _ in range(3):
            assert whole(scene.says())
            scene.post("/unload")
            scene.until(lambda: scene.state() is None)
    scene.leaves_nothing()


def test_a_socket_left_by_another_time_does_not_stop_a_load(scene: Scene) -> None:
    scene.into(State.READY)
    (seen,) = scene.daemon.status()["instances"]
    scene.post("/unload")
    scene.until(lambda: scene.state() is None)
    newest = int(seen["instance"].removeprefix("i"))
    left = [scene.daemon.folder / "run" / f"i{newest + n}-1.sock" for n in range(1, 9)]
    for path in left:
        path.touch()

    assert whole(scene.says())

    for path in left:
        path.unlink(missing_ok=True)
    scene.leaves_nothing()


@NOT_LOADING
def test_a_socket_that_vanishes_under_a_child_costs_nobody_an_answer(
    scene: Scene, state: State
) -> None:
    caller = scene.into(state)

    for path in (scene.daemon.folder / "run").rglob("i*-*.sock"):
        path.unlink()

    assert caller is None or whole(caller.ended())
    assert whole(scene.says())
    scene.leaves_nothing()


def test_a_stream_outlives_a_child_whose_socket_vanished_first(scene: Scene) -> None:
    caller = scene.answering()
    for path in (scene.daemon.folder / "run").rglob("i*-*.sock"):
        path.unlink()

    kill(scene.child())

    assert whole(caller.ended())
    scene.leaves_nothing()


def test_a_load_goes_on_when_its_caller_leaves(scene: Scene) -> None:
    scene.set_fleet("")
    scene.order(load_s=5.0)
    with pytest.raises(httpx.ReadTimeout):
        _impatient(scene, timeout_s=2.5)
    assert scene.state() == "loading"

    scene.until(lambda: scene.state() == "ready")

    assert scene.events("instance.loaded")
    scene.leaves_nothing()


@pytest.mark.parametrize("state", [State.READY, State.DRAINING], ids=["ready", "draining"])
def test_a_caller_who_leaves_in_mid_answer_frees_its_slot(scene: Scene, state: State) -> None:
    scene.order(token_s=TOKEN_S)
    caller = scene.into(state, tokens=AT_LENGTH) or scene.call(tokens=AT_LENGTH)
    assert caller.began.wait(WITHIN_S)

    caller.leave.set()

    scene.until(lambda: _idle(scene))  # AT_LENGTH it would go on for longer than that
    scene.leaves_nothing()


def test_a_reload_while_loading_serves_who_waited_by_the_new_settings(scene: Scene) -> None:
    scene.order(launches=1)
    caller = scene.into(State.LOADING, load_s=5.0)
    assert caller is not None

    scene.configure(models={MODEL: 256, OTHER: 128})

    assert whole(caller.ended())
    instances = scene.daemon.status()["instances"]

    assert [i["context"] for i in instances] == [256]
    scene.leaves_nothing()


def test_a_reload_while_ready_keeps_the_child_of_what_it_does_not_touch(scene: Scene) -> None:
    scene.into(State.READY)
    pid = scene.pid()

    scene.configure(models={MODEL: 128, OTHER: 256})

    assert whole(scene.says())
    assert scene.pid() == pid
    scene.leaves_nothing()


def test_a_reload_in_mid_answer_costs_its_caller_nothing_and_the_next_one_has_the_new_settings(
    scene: Scene,
) -> None:
    caller = scene.answering()

    scene.configure(models={MODEL: 256, OTHER: 128})

    assert whole(caller.ended())
    assert whole(scene.says())
    assert scene.context() == 256
    scene.leaves_nothing()


def test_a_reload_while_draining_lets_the_answer_end(scene: Scene) -> None:
    caller = scene.into(State.DRAINING)
    assert caller is not None

    scene.configure(models={OTHER: 128})

    assert whole(caller.ended())
    scene.until(lambda: scene.state() is None)
    assert scene.says().status == 404
    scene.configure(models={MODEL: 128, OTHER: 128})
    scene.leaves_nothing()


def test_ten_edits_within_a_second_apply_the_last_and_leave_the_others_alone(scene: Scene) -> None:
    assert whole(scene.says(OTHER))
    others = scene.pid(OTHER)

    for context in (*range(32, 212, 20), 256):
        scene.write_config(models={MODEL: context, OTHER: 128})
        scene.daemon.process.send_signal(signal.SIGHUP)
        time.sleep(0.1)  # the cadence of the edits
    scene.until(lambda: whole(scene.says()) and scene.context() == 256)

    assert scene.pid(OTHER) == others
    assert len(scene.events("config.reloaded")) <= 2  # once, but on a machine that is too slow
    scene.leaves_nothing()


def test_a_child_stopped_while_draining_ends_within_its_time(scene: Scene) -> None:
    caller = scene.into(State.DRAINING, tokens=AT_LENGTH)
    assert caller is not None
    child = scene.child()

    child.suspend()
    scene.daemon.process.terminate()

    assert told(caller.ended(DAEMON_STOP_S))
    assert scene.daemon.process.wait(DAEMON_STOP_S) == 0
    until_gone(child, within_s=GONE_S)


@STATES
def test_no_child_outlives_a_killed_daemon(scene: Scene, state: State) -> None:
    caller, child = scene.into(state), scene.child()

    scene.daemon.process.kill()
    scene.daemon.process.wait(WITHIN_S)

    until_gone(child, within_s=GONE_S)
    if caller is not None:
        with pytest.raises(httpx.TransportError):
            caller.ended()


@STATES
def test_a_daemon_told_to_stop_ends_in_time_and_leaves_nobody_guessing(
    scene: Scene, state: State
) -> None:
    caller, child = scene.into(state), scene.child()

    scene.daemon.process.terminate()

    assert caller is None or _was_served_or_told(caller)
    assert scene.daemon.process.wait(DAEMON_STOP_S) == 0
    until_gone(child, within_s=GONE_S)


def test_a_second_sigterm_waits_for_no_answer_and_the_last_one_changes_nothing(
    scene: Scene,
) -> None:
    scene.set_fleet('drain_timeout = "10m"')
    scene.order(token_s=30.0)
    caller = scene.call()
    scene.until(lambda: not _idle(scene))
    child = scene.child()

    scene.daemon.process.terminate()
    scene.until(lambda: "daemon.stop_asked" in scene.daemon.log())
    while scene.daemon.process.poll() is None:
        scene.daemon.process.terminate()
        time.sleep(LOOK_S)

    assert told(caller.ended())
    assert scene.daemon.process.returncode == 0
    until_gone(child, within_s=1.0)


def _was_served_or_told(caller: Caller) -> bool:
    ended = caller.ended(DAEMON_STOP_S)
    return whole(ended) or told(ended)


def _idle(scene: Scene) -> bool:
    return not any(i["running"] for i in scene.daemon.status()["instances"])


def _impatient(scene: Scene, *, timeout_s: float) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": SAID}]}
    with httpx.Client(base_url=scene.daemon.base, timeout=timeout_s, trust_env=False) as client:
        client.post("/v1/chat/completions", json=body)
