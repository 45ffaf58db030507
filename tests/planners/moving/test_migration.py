from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.model import ModelInfo
from planners.moving.migration import (
    Bridge,
    Carry,
    Finish,
    Hold,
    MigrationPlan,
    Occupied,
    Order,
    Park,
    RemoveFiles,
    Restore,
    Resume,
    Save,
    StartTarget,
    Step,
    StopSource,
    Switch,
    Way,
    carriage,
    is_carried,
    keeps_math,
    plan_migration,
)
from planners.plan import DeviceBytes, InstanceId, LaunchPlan, Shortfall
from planners.sizes import GIB, MIB
from tests.fakes.fleet_of_one import launch_plan, served_model
from tests.fakes.tiny_models import info_of, tiny_models

CARD, OTHER = DeviceId("pci:0000:01:00.0"), DeviceId("pci:0000:02:00.0")
INFOS = {model.name: info_of(model) for model in tiny_models()}
DENSE = INFOS["dense"]


def part(device_id: DeviceId, *, weights: int, kept: int) -> DeviceBytes:
    return DeviceBytes(device_id, weights_bytes=weights, kv_bytes=kept, compute_bytes=0)


RUNNING = replace(
    launch_plan(served_model(info=DENSE), n_ctx=4 * 2048, n_parallel=4),
    devices=((CARD, "CUDA0", 6),),
    n_gpu_layers=6,
    predicted=(part(CARD, weights=3 * GIB, kept=GIB),),
)
SMALLER = replace(
    RUNNING,
    devices=((CARD, "CUDA0", 3),),
    n_gpu_layers=3,
    predicted=(
        part(CARD, weights=3 * GIB // 2, kept=GIB // 2),
        part(HOST, weights=3 * GIB // 2, kept=GIB // 2),
    ),
)
FREE = {CARD: 3 * GIB, HOST: 8 * GIB}
IDLE = Occupied(0, n_tokens=100, is_running=False)
BUSY = Occupied(1, n_tokens=200, is_running=True)


def moved(
    wanted: LaunchPlan = SMALLER,
    *,
    occupied: Sequence[Occupied] = (),
    info: ModelInfo = DENSE,
    running: LaunchPlan = RUNNING,
    free: dict[DeviceId, int] | None = None,
) -> MigrationPlan:
    plan = plan_migration(
        InstanceId("tiny-1"),
        running=running,
        wanted=wanted,
        info=info,
        occupied=occupied,
        free=FREE if free is None else free,
    )
    assert isinstance(plan, MigrationPlan)
    return plan


def test_where_both_fit_the_new_one_is_there_before_the_old_one_goes() -> None:
    plan = moved(occupied=[BUSY])

    assert plan.order is Order.MAKE_BEFORE_BREAK
    assert plan.steps == (
        StartTarget(),
        Hold(),
        Park((1,)),
        Save(1),
        Restore(1, 1),
        Switch(),
        Resume(((1, 1),)),
        StopSource(),
        RemoveFiles((1,)),
    )
    assert plan.reasons[0] == (
        f"both fit side by side: 2.0 GiB of 3.0 GiB free on {CARD}, 2.0 GiB of 8.0 GiB free on host"
    )


def test_where_they_do_not_the_old_one_goes_first() -> None:
    plan = moved(occupied=[BUSY, IDLE], free={CARD: GIB, HOST: 8 * GIB})

    assert plan.order is Order.BREAK_BEFORE_MAKE
    assert plan.steps == (
        Hold(),
        Park((1,)),
        Save(0),
        Save(1),
        StopSource(),
        StartTarget(),
        Restore(0, 0),
        Restore(1, 1),
        Switch(),
        Resume(((1, 1),)),
        RemoveFiles((0, 1)),
    )
    assert plan.reasons[0] == (
        f"both do not fit side by side, so the running one goes first: missing 1.0 GiB on {CARD}"
    )


def test_what_would_not_even_fit_alone_is_not_begun() -> None:
    bigger = replace(RUNNING, predicted=(part(CARD, weights=9 * GIB, kept=GIB),))

    plan = plan_migration(
        InstanceId("tiny-1"),
        running=RUNNING,
        wanted=bigger,
        info=DENSE,
        occupied=(),
        free={CARD: GIB},
    )

    assert isinstance(plan, Shortfall)
    assert plan.missing_bytes == {CARD: 5 * GIB}


def test_a_device_that_does_not_tell_gets_no_second_child() -> None:
    plan = moved(free={HOST: 8 * GIB})

    assert plan.order is Order.BREAK_BEFORE_MAKE
    assert "does not tell what is free" in plan.reasons[0]


def test_an_rpc_server_that_serves_the_running_child_would_keep_the_next_one_waiting() -> None:
    running = replace(RUNNING, rpc_servers=("10.0.0.1:50052",))

    def order(*servers: str) -> Order:
        return moved(replace(SMALLER, rpc_servers=servers), running=running).order

    assert order("10.0.0.2:50052", "10.0.0.1:50052") is Order.BREAK_BEFORE_MAKE
    assert order("10.0.0.2:50052") is Order.MAKE_BEFORE_BREAK


def test_what_both_map_from_the_same_file_counts_once() -> None:
    on_host = replace(RUNNING, devices=(), predicted=(part(HOST, weights=6 * GIB, kept=GIB),))

    def order(shared: dict[DeviceId, int]) -> Order:
        plan = plan_migration(
            InstanceId("tiny-1"),
            running=on_host,
            wanted=on_host,
            info=DENSE,
            occupied=(),
            free={HOST: 6 * GIB},
            shared=shared,
        )
        assert isinstance(plan, MigrationPlan)
        return plan.order

    assert order({}) is Order.BREAK_BEFORE_MAKE
    assert order({HOST: 6 * GIB}) is Order.MAKE_BEFORE_BREAK


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"type_k": "q8_0"}, "type_k changes from f16 to q8_0"),
        ({"type_v": "q8_0"}, "type_v changes from f16 to q8_0"),
        ({"flash_attn": False}, "flash attention turns off"),
        ({"model_digest": "cd" * 32}, "file is another one"),
        ({"file_key": "2"}, "file is another one"),
        ({"lora_paths": ("/a.gguf",)}, "adapters change"),
        ({"swa_full": True}, "sliding windows are now kept whole"),
        ({"extra_flags": ("--rope-scale", "2")}, "own flags change"),
        ({"embedding": True}, "embedding model"),
    ],
)
def test_a_cache_that_the_next_child_could_not_read_stays_behind(
    changed: dict[str, object], says: str
) -> None:
    plan = moved(replace(SMALLER, **changed), occupied=[BUSY, IDLE])

    assert plan.carriage.carry is Carry.NOTHING
    assert any(says in reason for reason in plan.reasons)
    assert [move.way for move in plan.slots] == [Way.FORGOTTEN, Way.RECOMPUTED]
    assert not any(isinstance(step, Save | Restore | RemoveFiles) for step in plan.steps)
    assert Resume(((1, 1),)) in plan.steps


@pytest.mark.parametrize(
    "changed",
    [
        {"n_ctx": 16 * 2048},
        {"n_gpu_layers": 0, "devices": ()},
        {"engine_id": "newer"},
        {"backend": "vulkan"},
        {"n_ubatch": 64},
        {"n_threads": 7},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_cache_does_not_mind_where_it_lies(changed: dict[str, object]) -> None:
    wanted = replace(RUNNING, **changed)

    assert carriage(RUNNING, wanted, DENSE).carry is Carry.WHOLE
    assert carriage(RUNNING, wanted, DENSE).n_stream is None


def test_files_are_rewritten_for_another_number_of_slots() -> None:
    wanted = replace(SMALLER, n_ctx=2 * 2048, n_parallel=2)

    plan = moved(wanted, occupied=[replace(BUSY, slot=3)])

    assert "rewritten from 4 to 2 streams" in plan.carriage.reasons[0]
    assert plan.steps[4:6] == (Bridge(3, 2), Restore(3, 0))
    assert Resume(((3, 0),)) in plan.steps


def test_a_cache_that_slots_share_is_one_stream() -> None:
    unified = replace(RUNNING, extra_flags=("--kv-unified",))

    assert carriage(unified, replace(unified, n_parallel=2), DENSE).n_stream is None


@pytest.mark.parametrize(
    ("name", "swa_full", "carry", "bridges"),
    [
        ("dense", False, Carry.WHOLE, True),
        ("latent", False, Carry.WHOLE, True),
        ("windows-6", False, Carry.NOTHING, False),
        ("windows-6", True, Carry.WHOLE, True),
        ("hybrid-2", False, Carry.EXTENSION, True),
        ("state-2", False, Carry.EXTENSION, False),
    ],
)
def test_what_a_saved_slot_is_worth_depends_on_what_the_layers_keep(
    name: str, swa_full: bool, carry: Carry, bridges: bool
) -> None:
    running = replace(RUNNING, swa_full=swa_full)

    found = carriage(running, replace(running, n_parallel=2), INFOS[name])

    assert found.carry is carry
    assert (found.n_stream == 2) is bridges


def test_a_recurrent_state_goes_along_only_where_a_reply_ended_exactly_there() -> None:
    at_end = replace(BUSY, slot=2, at_segment_end=True)

    plan = moved(occupied=[IDLE, BUSY, at_end], info=INFOS["hybrid-2"])

    assert [move.way for move in plan.slots] == [Way.RESTORED, Way.RECOMPUTED, Way.RESTORED]


def test_a_reply_that_goes_on_only_on_the_same_math_ends_first_where_that_is_another() -> None:
    alike = replace(RUNNING, n_ctx=4 * 1024)

    plan = moved(occupied=[replace(BUSY, can_pause=False)])
    along = moved(alike, occupied=[replace(BUSY, can_pause=False)])

    assert plan.steps[:3] == (StartTarget(), Hold(), Finish(1))
    assert not any(isinstance(step, Park | Resume) for step in plan.steps)
    assert Park((1,)) in along.steps


def test_what_does_not_fit_the_smaller_context_ends_first_or_is_forgotten() -> None:
    wanted = replace(SMALLER, n_ctx=4 * 150)

    plan = moved(wanted, occupied=[BUSY, replace(IDLE, n_tokens=150), replace(IDLE, slot=2)])

    assert [move.way for move in plan.slots] == [Way.FORGOTTEN, Way.FINISHED, Way.RESTORED]
    assert plan.slots[1].reason == "slot 1: 200 tokens do not fit the new context of 150"


def test_running_replies_come_before_idle_conversations_and_some_wait_for_a_slot() -> None:
    one = replace(SMALLER, n_parallel=1, n_ctx=2048)
    occupied = [IDLE, BUSY, replace(BUSY, slot=2)]

    plan = moved(one, occupied=occupied)

    assert [(m.way, m.to_slot) for m in plan.slots] == [
        (Way.FORGOTTEN, None),
        (Way.RESTORED, 0),
        (Way.RESTORED, None),
    ]
    assert Resume(((1, 0), (2, None))) in plan.steps
    assert plan.steps[-1] == RemoveFiles((1,)), "the one that waits needs its file"


def test_of_idle_conversations_the_last_used_go_along() -> None:
    one = replace(SMALLER, n_parallel=1, n_ctx=2048)
    occupied = [replace(IDLE, last_used_s=1.0), replace(IDLE, slot=3, last_used_s=2.0)]

    assert [move.way for move in moved(one, occupied=occupied).slots] == [
        Way.FORGOTTEN,
        Way.RESTORED,
    ]


@pytest.mark.parametrize(
    ("changed", "is_kept"),
    [
        ({"n_ctx": 16 * 2048}, True),
        ({"n_parallel": 1}, True),
        ({"n_ubatch": 64}, True),
        ({"n_gpu_layers": 3}, False),
        ({"backend": "vulkan"}, False),
        ({"engine_id": "newer"}, False),
        ({"type_v": "q8_0"}, False),
        ({"devices": ((OTHER, "CUDA1", 6),)}, False),
    ],
)
def test_text_is_the_same_only_where_the_same_kernels_compute_it(
    changed: dict[str, object], is_kept: bool
) -> None:
    assert keeps_math(RUNNING, replace(RUNNING, **changed)) is is_kept


def test_another_split_over_the_same_devices_is_the_same_math() -> None:
    two = replace(RUNNING, devices=((CARD, "RPC0", 3), (OTHER, "RPC1", 3)))
    other = replace(RUNNING, devices=((CARD, "RPC0", 5), (OTHER, "RPC1", 1)))

    assert keeps_math(two, other)


@pytest.mark.parametrize(
    ("cached", "carried"),
    [(0, False), (24, False), (198, True), (195, True), (189, False)],
)
def test_a_restore_is_believed_by_what_the_next_request_found_cached(
    cached: int, carried: bool
) -> None:
    assert is_carried(restored_tokens=199, cached_tokens=cached, prompt_tokens=199) is carried


def test_a_prompt_shorter_than_what_was_saved_cannot_use_more_than_itself() -> None:
    assert is_carried(restored_tokens=500, cached_tokens=38, prompt_tokens=39)


SLOTS = st.lists(
    st.builds(
        Occupied,
        slot=st.integers(0, 7),
        n_tokens=st.integers(1, 3000),
        is_running=st.booleans(),
        at_segment_end=st.booleans(),
        can_pause=st.booleans(),
        last_used_s=st.floats(0, 100),
    ),
    unique_by=lambda seen: seen.slot,
    max_size=8,
)


@given(
    occupied=SLOTS,
    n_parallel=st.integers(1, 8),
    name=st.sampled_from(["dense", "windows-6", "hybrid-2", "state-2"]),
    free=st.integers(0, 4 * GIB),
    type_k=st.sampled_from(["f16", "q8_0"]),
)
def test_no_running_reply_is_lost_and_no_slot_is_given_twice(
    occupied: list[Occupied], n_parallel: int, name: str, free: int, type_k: str
) -> None:
    wanted = replace(SMALLER, n_parallel=n_parallel, n_ctx=n_parallel * 2048, type_k=type_k)

    plan = moved(
        wanted,
        occupied=occupied,
        info=INFOS[name],
        running=replace(RUNNING, n_parallel=8),
        free={CARD: free, HOST: 8 * GIB},
    )

    running = {seen.slot for seen in occupied if seen.is_running}
    kept = {slot for step in plan.steps if isinstance(step, Resume) for slot, _ in step.slots}
    ended = {step.slot for step in plan.steps if isinstance(step, Finish)}
    assert kept | ended == running
    assert not kept & ended
    places = [move.to_slot for move in plan.slots if move.to_slot is not None]
    assert len(set(places)) == len(places)
    assert all(place < n_parallel for place in places)
    _check_sequence(plan.steps, plan.order)


def _check_sequence(steps: Sequence[Step], order: Order) -> None:
    """Each thing after what it needs: files, an idle slot, a child that is there."""
    at = {step: i for i, step in enumerate(steps)}
    assert len(at) == len(steps)
    start, stop = at[StartTarget()], at[StopSource()]
    assert (start < stop) is (order is Order.MAKE_BEFORE_BREAK)
    for step, i in at.items():
        match step:
            case Save(slot):
                assert i < stop
                assert all(slot not in s.slots or at[s] < i for s in steps if isinstance(s, Park))
            case Bridge(slot):
                assert at[Save(slot)] < i
            case Restore(slot):
                assert max(at[Save(slot)], start) < i < at[Switch()]
            case Resume() | Switch():
                assert start < i
            case Hold():
                assert all(at[s] > i for s in steps if isinstance(s, Park | Finish | Save))
            case _:
                pass


@given(
    more=st.integers(0, 4 * GIB // MIB),
    free=st.integers(0, 4 * GIB // MIB),
)
def test_more_free_memory_never_turns_make_before_break_around(more: int, free: int) -> None:
    def order(n: int) -> Order:
        return moved(free={CARD: n * MIB, HOST: 8 * GIB}).order

    if order(free) is Order.MAKE_BEFORE_BREAK:
        assert order(free + more) is Order.MAKE_BEFORE_BREAK
