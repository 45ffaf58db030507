"""The fleet on real processes. What callers see, and that no process is left."""

import asyncio
import os
import shutil
import signal
import stat
import sys
import threading
from math import inf
from pathlib import Path
from time import monotonic

import httpx
import psutil
import pytest
from msgspec.structs import replace

from planners.lessons.learning import LEAST_SAMPLES
from planners.lessons.usage import Usage
from planners.model import ModelId
from planners.plan import LaunchPlan, Shortfall
from planners.settings import MemoryRule, ModelRule
from planners.view import InstanceState
from supervisor.children.child_logs import FILE_BYTES
from supervisor.devices.sighting import Reading
from supervisor.engines.tinymodel import tiny_model
from supervisor.leases.lease import LineFull, ModelUnavailable, Stopping, WaitTimedOut
from supervisor.records.journal_file import LAUNCHES
from tests.fakes import machines
from tests.fakes.fleet_world import TINY, MakeWorld, World
from tests.fakes.machines import PLAIN, RULES
from tests.fakes.processes import is_gone
from tests.fakes.serving import serving

OTHER = ModelId("other")


async def test_a_model_is_loaded_by_its_first_caller_and_kept_for_the_next(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        first = await world.served_by()
        second = await world.served_by()

        assert first == second
        assert not is_gone(first)
    assert is_gone(first)


async def test_one_load_serves_everyone_who_waits(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(load_s=0.3)

        pids = await asyncio.gather(*(world.served_by() for _ in range(10)))

        assert len(set(pids)) == 1
        assert (await world.kinds()).count("instance.started") == 1


async def test_callers_hold_different_slots(fleet_world: MakeWorld) -> None:
    async with (
        fleet_world() as world,
        world.fleet.lease(TINY, caller="a") as one,
        world.fleet.lease(TINY, caller="b") as other,
    ):
        assert {one.slot, other.slot} == {0, 1}


async def test_a_load_goes_on_when_its_caller_leaves(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(load_s=0.3)
        caller = asyncio.create_task(world.served_by())
        await world.until_state(InstanceState.LOADING)

        caller.cancel()

        await world.until_state(InstanceState.READY)
        assert world.fleet.running()[0].running == 0


async def test_a_caller_who_leaves_frees_the_slot(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:

        async def hold() -> None:
            async with world.fleet.lease(TINY, caller="a"):
                await asyncio.Event().wait()

        holder = asyncio.create_task(hold())
        await world.until(lambda: [seen.running for seen in world.fleet.running()] == [1])

        holder.cancel()

        await world.until(lambda: world.seen().running == 0)


async def test_an_idle_model_is_unloaded_after_its_keep_alive(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        pid = await world.served_by(keep_alive_s=0.2)

        await world.until_state(None)

        assert is_gone(pid)
        assert not list(world.run_dir.glob("i*"))


async def test_the_proxy_hears_of_a_stop_while_the_child_still_lives(
    fleet_world: MakeWorld,
) -> None:
    heard: list[tuple[str, bool]] = []
    pids: list[int] = []
    async with fleet_world(leaving=lambda path: heard.append((path, is_gone(pids[0])))) as world:
        async with world.fleet.lease(TINY, caller="a") as lease:
            pids.append(world.pid())
        world.fleet.unload(TINY)
        await world.until_state(None)

    assert heard == [(lease.socket_path, False), (lease.socket_path, True)]


async def test_a_bug_in_one_instance_fails_it_and_leaves_the_others_alone(
    fleet_world: MakeWorld,
) -> None:
    def leaving(socket_path: str) -> None:
        raise ZeroDivisionError(socket_path)

    async with fleet_world(names=("tiny", "other"), leaving=leaving) as world:
        other = await world.served_by(OTHER)
        os.kill(await world.served_by(), signal.SIGKILL)
        await world.until_state(InstanceState.FAILED)

        with pytest.raises(ModelUnavailable, match="a bug in inferenceosd"):
            await world.served_by()
        assert await world.served_by(OTHER) == other


async def test_a_run_folder_that_cannot_be_made_again_is_named(fleet_world: MakeWorld) -> None:
    async with fleet_world(restart_limit=1) as world:
        hidden = world.run_dir.rename(world.run_dir.with_name(world.run_dir.name + "-hidden"))
        world.run_dir.write_text("in the way")

        with pytest.raises(ModelUnavailable, match=rf"{world.run_dir}\S* cannot be made"):
            await world.served_by()

        world.run_dir.unlink()
        hidden.rename(world.run_dir)


async def test_a_pinned_model_is_loaded_unasked_and_said_to_stay_for_ever(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        pinned = ModelRule(TINY, None, (), replace(PLAIN, pin=True, keep_alive_s=0.1))
        world.catalogue.reconfigure(dirs=(str(world.models),), rules=(pinned,), defaults=PLAIN)
        await world.catalogue.scan()
        world.fleet.look()

        await world.until_state(InstanceState.READY)

        seen = world.seen()
        assert seen is not None
        assert seen.expires_at == inf


async def test_a_pinned_model_that_finds_no_room_is_told_once(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.rule(replace(RULES, memory=MemoryRule(limit_bytes=1 << 20, reserve_bytes=0)))
        pinned = ModelRule(TINY, None, (), replace(PLAIN, pin=True))
        world.catalogue.reconfigure(dirs=(str(world.models),), rules=(pinned,), defaults=PLAIN)
        await world.catalogue.scan()
        world.fleet.look()
        async with asyncio.timeout(30):
            while not await world.journal.events(model_id=TINY, since=0.0, limit=100):
                await asyncio.sleep(0.05)
        with pytest.raises(ModelUnavailable):
            await world.served_by()  # it was looked at once more

        events = await world.journal.events(model_id=TINY, since=0.0, limit=100)

    assert [event.kind for event in events] == ["model.refused"] * 2
    assert [event.facts["callers"] for event in events] == [0, 1]
    assert "does not fit" in events[0].reason


async def test_a_keep_alive_once_given_holds_for_later_requests(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by(keep_alive_s=1234.0)

        await world.served_by()

        assert world.seen().keep_alive_s == 1234.0


async def test_a_keep_alive_asked_for_while_the_old_child_stops_holds_for_the_new_one(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await world.served_by(keep_alive_s=1.0)
        world.fleet.unload(TINY)

        await world.served_by(keep_alive_s=1234.0)

        assert world.seen().keep_alive_s == 1234.0


async def test_a_keep_alive_is_forgotten_with_its_instance(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await world.served_by(keep_alive_s=1234.0)
        world.fleet.unload(TINY)
        await world.until_state(None)

        await world.served_by()

        assert world.seen().keep_alive_s == 300.0


async def test_unload_waits_for_running_requests(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        async with world.fleet.lease(TINY, caller="a"):
            pid = world.pid()
            assert world.fleet.unload(TINY)
            await world.until_state(InstanceState.DRAINING)
            assert not is_gone(pid)

        await world.until_state(None)
        assert not world.fleet.unload(TINY)


async def test_a_child_killed_while_idle_is_replaced_before_anyone_asks(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        first = await world.served_by()

        os.kill(first, signal.SIGKILL)
        await world.until(lambda: world.seen().pid not in (first, None))
        second = await world.served_by()

        assert second != first
        events = await world.journal.events(model_id=TINY, since=0.0, limit=100)
        (ended,) = [event for event in events if event.kind == "instance.ended"]
        assert "SIGKILL" in ended.reason


async def test_a_dead_child_is_noticed_within_a_tenth_of_a_second(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()

        os.kill(pid, signal.SIGKILL)

        await world.until(lambda: world.seen().pid != pid, within_s=0.1)


async def test_the_end_of_a_leases_child_can_be_waited_for(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world, world.fleet.lease(TINY, caller="a") as lease:
        await world.fleet.until_gone(lease, within_s=0.05)
        assert not is_gone(world.pid())

        os.kill(world.pid(), signal.SIGKILL)

        async with asyncio.timeout(5.0):
            await world.fleet.until_gone(lease, within_s=60.0)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("bad_model", "GGUF"),
        ("bad_arch", "zlama"),
        pytest.param("oom", "memory", id="oom of a device that nobody asked"),
    ],
)
async def test_a_load_that_can_only_fail_again_is_refused_with_its_cause(
    fleet_world: MakeWorld, fault: str, reason: str
) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading=fault)

        with pytest.raises(ModelUnavailable, match=reason):
            await world.served_by()
        with pytest.raises(ModelUnavailable, match=reason):
            async with asyncio.timeout(0.5):
                await world.served_by()

        assert world.state() is InstanceState.FAILED
        assert (await world.kinds()).count("instance.started") == 1


async def test_a_child_that_dies_again_and_again_opens_the_breaker(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="crash")

        with pytest.raises(ModelUnavailable, match="SIGSEGV") as refused:
            await world.served_by()

        assert (await world.kinds()).count("instance.started") == 3
        assert "inferenceosctl retry" in refused.value.reason
        assert any("loading model" in line for line in refused.value.log_tail)
        assert refused.value.log_tail[-1] in str(refused.value)


async def test_an_open_breaker_lets_a_caller_try_again_after_its_cooldown(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(restart_limit=1, cooldown_s=0.3) as world:
        world.order(die_while_loading="crash", launches=1)
        with pytest.raises(ModelUnavailable) as refused:
            await world.served_by()
        retry_at_s = world.seen().retry_at_s
        assert retry_at_s is not None
        with pytest.raises(ModelUnavailable) as refused:
            await world.served_by()
        assert refused.value.retry_after_s is not None

        await world.until(lambda: monotonic() > retry_at_s)

        assert await world.served_by()


async def test_a_pinned_model_comes_back_by_itself_after_its_cooldowns(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(restart_limit=1, cooldown_s=0.2) as world:
        world.order(die_while_loading="crash", launches=3)
        world.catalogue.reconfigure(
            dirs=(str(world.models),),
            rules=(ModelRule(TINY, None, (), replace(PLAIN, pin=True)),),
            defaults=PLAIN,
        )
        await world.catalogue.scan()
        world.fleet.look()

        await world.until_state(InstanceState.READY)

        kinds = await world.kinds()
        events = await world.journal.events(model_id=TINY, since=0.0, limit=1000)
        reasons = [e.reason for e in events if e.kind == "instance.resumed"]
        assert kinds.count("instance.failed") == 3
        assert len(reasons) == 3
        assert all("cooldown is over and it is pinned" in reason for reason in reasons)


async def test_requests_that_kill_their_child_leave_the_model_to_others(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world, serving(world.fleet) as served:
        world.order(poison="poison")

        async def answer(prompt: str) -> httpx.Response:
            asked = {"model": TINY, "prompt": prompt, "stream": False, "max_tokens": 2}
            return await served.client.post("/v1/completions", json=asked)

        for n in range(3):
            assert (await answer("bread")).status_code == 200
            reply = await answer(f"poison {n}")
            assert reply.status_code == 502
            assert reply.headers["x-should-retry"] == "false"
            assert "2 times on this request" in reply.json()["error"]["message"]
            assert "SIGSEGV" in reply.json()["error"]["message"]

        assert (await answer("bread")).status_code == 200


async def test_a_request_that_crashed_two_children_alone_is_refused_and_costs_no_third(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world, serving(world.fleet) as served:
        world.order(poison="poison")
        asked = {"model": TINY, "prompt": "poison", "stream": False, "max_tokens": 2}
        await served.client.post("/v1/completions", json=asked)
        well = await served.client.post("/v1/completions", json={**asked, "prompt": "bread"})
        pid = world.pid()

        again = await served.client.post("/v1/completions", json=asked)

        assert again.status_code == 422
        assert again.json()["error"]["code"] == "request_crashes_engine"
        assert "SIGSEGV" in again.json()["error"]["message"]
        assert (well.status_code, world.pid()) == (200, pid)


async def test_who_was_under_way_beside_a_crash_is_not_blamed(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world, serving(world.fleet) as served:
        world.order(poison="poison")
        asked = {"model": TINY, "prompt": "poison", "stream": False, "max_tokens": 2}
        for _ in range(2):  # both of its children had somebody else on them
            async with world.fleet.lease(TINY, caller="other"):
                died = asyncio.create_task(served.client.post("/v1/completions", json=asked))
                await world.until(lambda: world.state() is not InstanceState.READY)
            async with world.fleet.lease(TINY, caller="other"):
                assert (await died).status_code == 502

        told = await served.client.post("/v1/completions", json=asked)

        assert told.status_code == 502


async def test_a_child_that_loses_its_device_has_the_machine_read_anew(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="device_lost", launches=1)

        assert await world.served_by()

        events = await world.journal.events(model_id=None, since=0.0, limit=100)
        told = [event.reason for event in events if event.kind == "device.failed"]
        assert len(told) == 1
        assert "ErrorDeviceLost" in told[0]


async def test_retry_closes_the_breaker(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="bad_model")
        with pytest.raises(ModelUnavailable):
            await world.served_by()
        world.order()

        assert world.fleet.retry(TINY)

        assert await world.served_by()


async def test_a_changed_file_closes_the_breaker(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="bad_model")
        with pytest.raises(ModelUnavailable):
            await world.served_by()
        world.order()

        (world.models / "tiny.gguf").unlink()
        (world.models / "tiny.gguf").write_bytes(tiny_model())
        await world.catalogue.scan()
        world.fleet.look()

        assert await world.served_by()


async def test_a_run_folder_that_somebody_removed_is_made_again(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        shutil.rmtree(world.run_dir)

        assert await world.served_by()
        assert stat.S_IMODE(world.run_dir.stat().st_mode) == 0o700


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process reads")
async def test_a_load_that_only_reads_is_not_taken_for_stuck(fleet_world: MakeWorld) -> None:
    async with fleet_world(load_s=0.5, restart_limit=1) as world:
        world.order(read_s=1.5)

        await world.served_by()

        assert (await world.kinds()).count("instance.started") == 1


async def test_a_load_without_progress_is_ended(fleet_world: MakeWorld) -> None:
    async with fleet_world(load_s=0.3, restart_limit=1) as world:
        world.order(stuck_loading=True)

        with pytest.raises(ModelUnavailable, match="no progress"):
            await world.served_by()


async def test_a_load_that_says_the_same_over_and_over_makes_no_progress(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world(load_s=0.8, restart_limit=1) as world:
        world.order(stuck_loading=True, chatter="waiting for the device")

        with pytest.raises(ModelUnavailable, match="no progress while loading"):
            await world.served_by()


async def test_a_load_that_logs_for_ever_has_an_end(fleet_world: MakeWorld) -> None:
    async with fleet_world(load_s=60.0, load_limit_s=0.8, restart_limit=1) as world:
        world.order(stuck_loading=True, chatter="tensor {n} of many")

        with pytest.raises(ModelUnavailable, match="not ready after loading for 1 s"):
            await world.served_by()

        assert "instance.hung" in await world.kinds()


async def test_a_load_that_logs_something_new_goes_on(fleet_world: MakeWorld) -> None:
    async with fleet_world(load_s=1.0, restart_limit=1) as world:
        world.order(load_s=3.0, chatter="tensor {n} of many")

        await world.served_by()


async def test_a_child_that_ignores_sigterm_is_killed(fleet_world: MakeWorld) -> None:
    async with fleet_world(stop_s=0.2) as world:
        world.order(ignore_sigterm=True)
        pid = await world.served_by()

        world.fleet.unload(TINY)

        await world.until_state(None)
        assert is_gone(pid)


async def test_a_stopping_fleet_lets_requests_end_and_takes_no_new_ones(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world, world.fleet.lease(TINY, caller="a"):
        pid = world.pid()
        world.fleet.stop()

        with pytest.raises(Stopping):
            await world.served_by()
        assert not is_gone(pid)


async def test_a_shorter_drain_hurries_one_under_way(fleet_world: MakeWorld) -> None:
    async with (
        fleet_world(finish_s=60.0, drain_s=0.1) as world,
        world.fleet.lease(TINY, caller="a"),
    ):
        pid = world.pid()
        world.fleet.unload(TINY)
        await world.until_state(InstanceState.DRAINING)

        world.fleet.stop()

        await world.until(lambda: is_gone(pid), within_s=5.0)


class HungDriver:
    """A source that answers when it is let go."""

    name = "nvml"

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def read(self) -> Reading:
        self.asked.set()
        self.let_go.wait(60)
        return Reading()


async def test_a_driver_that_hangs_does_not_keep_the_fleet_from_stopping(
    fleet_world: MakeWorld,
) -> None:
    driver = HungDriver()
    async with fleet_world(sources=(driver,)) as world:
        await world.until(driver.asked.is_set)
        began_s = monotonic()
    took_s = monotonic() - began_s
    driver.let_go.set()

    assert took_s < 4.5  # a probe gives its sources 5 s


async def test_a_request_that_never_ends_is_cut_after_drain_s(fleet_world: MakeWorld) -> None:
    async with fleet_world(drain_s=0.2) as world, world.fleet.lease(TINY, caller="a"):
        pid = world.pid()
        world.fleet.stop()

        await world.until(lambda: is_gone(pid), within_s=5.0)


async def test_waiters_are_told_when_the_daemon_stops(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(load_s=5.0)
        waiter = asyncio.create_task(world.served_by())
        await world.until_state(InstanceState.LOADING)

        world.fleet.stop()

        with pytest.raises(Stopping):
            await waiter


async def test_a_wait_for_a_slot_is_bounded(fleet_world: MakeWorld) -> None:
    async with fleet_world(wait_s=0.2) as world:
        world.order(load_s=5.0)

        with pytest.raises(WaitTimedOut):
            await world.served_by()


async def test_a_full_line_refuses_at_once(fleet_world: MakeWorld) -> None:
    async with fleet_world(max_waiting=2) as world:
        world.order(load_s=1.0)
        waiters = [asyncio.create_task(world.served_by()) for _ in range(2)]
        await world.until_state(InstanceState.LOADING)

        with pytest.raises(LineFull):
            await world.served_by()

        await asyncio.gather(*waiters)


async def test_a_changed_model_is_drained_and_launched_anew_on_demand(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        first = await world.served_by()

        rules = replace(world.desired.rules, context=1024)
        world.desired = replace(world.desired, rules=rules)
        world.fleet.apply(world.desired)
        await world.until_state(None)
        second = await world.served_by()

        assert is_gone(first)
        assert second != first


async def test_a_reload_that_changes_nothing_for_a_model_keeps_its_child(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        first = await world.served_by()

        world.apply(wait_s=5.0)
        await asyncio.sleep(0)

        assert await world.served_by() == first


async def test_a_model_whose_file_is_gone_is_stopped(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        pid = await world.served_by()

        (world.models / "tiny.gguf").unlink()
        await world.catalogue.scan()
        world.fleet.look()

        await world.until_state(None)
        assert is_gone(pid)


async def why_refused(world: World) -> str:
    """What a caller is told who is refused in the end."""
    with pytest.raises(ModelUnavailable) as refused:
        await world.served_by()
    return str(refused.value)


async def test_who_waits_for_a_model_whose_file_is_spoilt_is_told_what_is_wrong_with_it(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        world.order(load_s=30.0)
        async with asyncio.TaskGroup() as tasks:
            caller = tasks.create_task(why_refused(world))
            await world.until(lambda: world.state() is InstanceState.LOADING)

            (world.models / "fresh").write_bytes(b"no model at all")
            (world.models / "fresh").replace(world.models / "tiny.gguf")
            await world.catalogue.scan()
            world.fleet.look()

        assert "cannot be used: plain text, not a model" in caller.result()


async def test_the_limit_of_loaded_models_stops_the_idle_one(fleet_world: MakeWorld) -> None:
    async with fleet_world(names=("tiny", "other"), max_loaded=1) as world:
        first = await world.served_by()

        await world.served_by(OTHER)

        assert is_gone(first)
        assert world.state() is None


async def test_another_model_stays_usable_while_one_loads(fleet_world: MakeWorld) -> None:
    async with fleet_world(names=("tiny", "other")) as world:
        await world.served_by(OTHER)
        world.order(load_s=5.0)
        loading = asyncio.create_task(world.served_by())
        await world.until_state(InstanceState.LOADING)

        async with asyncio.timeout(0.5):
            await world.served_by(OTHER)

        loading.cancel()


async def test_the_childs_log_can_be_read_after_its_end(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        world.order(die_while_loading="bad_model")
        with pytest.raises(ModelUnavailable):
            await world.served_by()

        assert any("invalid magic" in line for line in world.fleet.log_lines(TINY, 50))


async def test_children_live_in_a_private_folder_with_a_scrubbed_environment(
    fleet_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("LD_PRELOAD", "/nowhere.so")
    async with fleet_world() as world:
        child = psutil.Process(await world.served_by())

        assert Path(child.cwd()) == world.run_dir / "cwd"
        assert not {"LLAMA_ARG_CTX_SIZE", "LD_PRELOAD"} & set(child.environ())


async def test_what_a_request_took_is_what_the_next_plan_predicts(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        served = world.fleet.resolve("tiny")
        assert served is not None
        usual = (await world.fleet.prospects.outlook(served)).answer
        assert isinstance(usual, LaunchPlan)
        usual_rate = usual.predicted_prompt_tokens_per_s
        assert usual_rate is not None
        observed = usual_rate / 2
        usage = Usage(prompt_tokens=96, prompt_s=96 / observed, decode_tokens=1, decode_s=0.0)

        for _ in range(LEAST_SAMPLES):
            async with world.fleet.lease(TINY, caller="test") as lease:
                world.fleet.report(lease, usage)
        world.fleet.unload(TINY)  # a launch's end is when rates are taken in at once
        await world.until_state(None)
        plan = (await world.fleet.prospects.outlook(served)).answer

        assert isinstance(plan, LaunchPlan)
        assert plan.predicted_prompt_tokens_per_s is not None
        assert 0.3 * usual_rate < plan.predicted_prompt_tokens_per_s < 0.7 * usual_rate


async def killed_once_then_unloaded(world: World) -> None:
    await world.served_by()
    os.kill(world.pid(), signal.SIGKILL)
    await world.until(lambda: world.seen().restarts == 1)
    await world.until_state(InstanceState.READY)
    world.fleet.unload(TINY)
    await world.until_state(None)


async def test_every_launch_is_one_row_with_what_became_of_it(fleet_world: MakeWorld) -> None:
    async with fleet_world() as world:
        await killed_once_then_unloaded(world)
        world.order(die_while_loading="crash")
        with pytest.raises(ModelUnavailable):
            await world.fleet.load(TINY)

        rows = await world.journal.rows(LAUNCHES, limit=100)

    assert [row["outcome"] for row in rows[:3]] == ["died", "stopped", "died"]
    assert [row["load_s"] is not None for row in rows[:3]] == [True, True, False]
    assert "SIGKILL" in str(rows[0]["cause"])
    assert '"device_id":"host"' in str(rows[0]["measured"])


async def test_a_second_launch_is_planned_with_what_the_first_one_took(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await world.served_by()
        took = [(p.device_id, p.compute_bytes) for p in world.seen().measured]
        world.fleet.unload(TINY)
        await world.until_state(None)

        await world.served_by()

        assert [(p.device_id, p.compute_bytes) for p in world.seen().plan.predicted] == took
        assert "plan.corrected" in await world.kinds()


async def test_the_log_of_a_child_that_died_is_there_when_its_instance_is_gone(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        await killed_once_then_unloaded(world)

        lines = await world.records.child_logs.last(TINY, 10_000)

    begun = [line for line in lines if line.startswith("[inferenceosd: ")]
    assert [line.split(" ", 2)[2] for line in begun] == ["launch 1 of i1]", "launch 2 of i1]"]
    assert sum("model loaded" in line for line in lines) == 2


async def test_a_child_that_floods_its_log_is_served_and_bounded_on_disk(
    fleet_world: MakeWorld, tmp_path: Path
) -> None:
    async with fleet_world() as world:
        world.order(flood_stderr=60_000)
        await world.served_by()
        await world.records.child_logs.last(TINY, 1)

        files = list((tmp_path / "logs").iterdir())

        assert len(files) <= 2
        assert sum(path.stat().st_size for path in files) <= 2 * FILE_BYTES


async def test_models_are_planned_beside_each_other_and_beside_what_runs(
    fleet_world: MakeWorld,
) -> None:
    async with fleet_world() as world:
        tiny = world.fleet.resolve("tiny")
        assert tiny is not None
        others = [replace(tiny, model_id=ModelId(name)) for name in ("one", "other")]
        roomy = await world.fleet.profile()
        fixed = [replace(o, settings=replace(o.settings, context=2048)) for o in others]

        beside = await world.fleet.prospects.outlooks(fixed)
        elsewhere = await world.fleet.prospects.outlooks(
            fixed, elsewhere=machines.machine(host_gib=0.01)
        )

    assert [each.served.model_id for each in beside] == ["one", "other"]
    assert all(isinstance(each.answer, LaunchPlan) for each in beside)
    assert all(isinstance(each.answer, Shortfall) for each in elsewhere)
    assert beside[0].hardware.host.total_bytes == roomy.host.total_bytes
