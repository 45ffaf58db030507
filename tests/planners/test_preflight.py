from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.buffers import parse_buffer_line
from planners.errors import PlanError
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.placement import plan_launch
from planners.plan import DeviceBytes, LaunchPlan
from planners.preflight import DryRun, corrected, excess_bytes, preflight_argv, straddles
from planners.sizes import MIB
from tests.fakes.machines import CPU, FLAGS, RULES, engine, machine, nvidia, served

# As llama-server b10434 prints at -lv 5.
LOG = """\
0.00.192.918 I llama_context: Vulkan_Host  output buffer size =     0.00 MiB
0.00.204.929 I sched_reserve: RPC0[127.0.0.1:50991] compute buffer size =    10.26 MiB
0.00.204.930 I sched_reserve:    Vulkan0 compute buffer size =     4.76 MiB
0.00.204.931 I sched_reserve: Vulkan_Host compute buffer size =     3.51 MiB
0.00.211.669 I common_memory_breakdown_print: | memory breakdown [MiB]                         | total    free    self   model   context   compute    unaccounted |
0.00.211.677 I common_memory_breakdown_print: |   - RPC0 (127.0.0.1:50991)                     | 24105 = 24105 + (  15 =     3 +       2 +      10) +         -15 |
0.00.211.678 I common_memory_breakdown_print: |   - Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) |  2048 =  2048 + (   7 =     1 +       1 +       4) +          -7 |
0.00.211.678 I common_memory_breakdown_print: |   - Host                                       |                     3 =     0 +       0 +       3                |
0.00.212.046 I common_params_fit_impl: projected memory use with initial parameters [MiB]:
0.00.300.000 I sched_reserve:    Vulkan0 compute buffer size =    99.99 MiB
"""  # noqa: E501  # as printed
GPU, FAR = DeviceId("gpu"), DeviceId("rpc:127.0.0.1:50991")


def planned(hardware: HardwareProfile | None = None) -> LaunchPlan:
    hardware = hardware or machine(nvidia(0, 24), host_gib=64)
    plan = plan_launch(
        served(), hardware=hardware, engines=(engine("cuda"),), rules=RULES, promised={}
    )
    assert isinstance(plan, LaunchPlan)
    return plan


def on_two() -> LaunchPlan:
    return replace(planned(), devices=((FAR, "RPC0", 3), (GPU, "Vulkan0", 30)))


def heard(lines: Sequence[str]) -> DryRun:
    said = DryRun()
    for line in lines:
        said.feed(line, parse_buffer_line(line))
    return said


def test_the_first_table_ends_the_run_and_exact_lines_count() -> None:
    said = heard(LOG.splitlines())

    assert said.is_complete
    assert said.compute_bytes(on_two()) == {
        FAR: round(10.26 * MIB),
        GPU: round(4.76 * MIB),
        HOST: round(3.51 * MIB),
    }


def test_without_exact_lines_the_tables_whole_mebibytes_count() -> None:
    said = heard([line for line in LOG.splitlines() if "buffer size" not in line])

    assert said.compute_bytes(on_two()) == {FAR: 10 * MIB, GPU: 4 * MIB, HOST: 3 * MIB}


def test_a_table_that_does_not_end_is_no_answer() -> None:
    assert not heard(LOG.splitlines()[:8]).is_complete
    assert not heard(LOG.splitlines()[:5] + ["garbage"] * 3).is_complete


@given(st.lists(st.text(max_size=200), max_size=40))
def test_garbage_is_passed_over(lines: list[str]) -> None:
    assert heard(lines).compute_bytes(on_two()) == {}


@given(cuts=st.lists(st.integers(0, 220), min_size=10, max_size=10))
def test_a_torn_log_is_read_or_passed_over(cuts: list[int]) -> None:
    torn = [line[:cut] for line, cut in zip(LOG.splitlines(), cuts, strict=True)]

    assert all(n >= 0 for n in heard(torn).compute_bytes(on_two()).values())


def test_weights_and_caches_stay_and_compute_is_replaced() -> None:
    parts = (DeviceBytes(HOST, 1, 2, 3, 4, 5), DeviceBytes(GPU, 10, 20, 30, 40, 50))

    assert corrected(parts, {GPU: 35, HOST: 7}, output_bytes=2) == (
        DeviceBytes(HOST, 1, 2, 9, 4, 0),
        DeviceBytes(GPU, 10, 20, 35, 40, 0),
    )


def test_over_several_devices_the_larger_figure_counts() -> None:
    parts = (DeviceBytes(FAR, 10, 20, 30, 40, 50), DeviceBytes(GPU, 10, 20, 30, 40, 50))

    found = corrected(parts, {FAR: 25, GPU: 35}, output_bytes=0)

    assert [part.compute_bytes for part in found] == [30, 35]
    assert [part.margin_bytes for part in found] == [0, 0]


def test_a_device_of_which_nothing_was_said_keeps_its_margin() -> None:
    parts = (DeviceBytes(GPU, 10, 20, 30, 40, 50),)

    assert corrected(parts, {}, output_bytes=0) == parts


def test_a_roomy_launch_is_not_worth_a_dry_run() -> None:
    hardware = machine(nvidia(0, 80), host_gib=256)

    assert not straddles(planned(hardware), hardware)


def test_a_launch_that_an_error_would_decide_is() -> None:
    hardware = machine(nvidia(0, 24), host_gib=64)
    plan = planned(hardware)
    part = next(part for part in plan.predicted if part.device_id != HOST)
    tight = part.total_bytes + part.margin_bytes + (1 << 20)
    narrow = machine(nvidia(0, 24, free_gib=tight / (1 << 30)), host_gib=64)

    assert part.margin_bytes > 0
    assert straddles(plan, narrow)


def test_what_was_measured_above_the_room_is_told() -> None:
    hardware = machine(nvidia(0, 24), host_gib=64)
    plan = planned(hardware)
    more = tuple(
        replace(part, compute_bytes=25 << 30) if part.device_id != HOST else part
        for part in plan.predicted
    )

    assert list(excess_bytes(more, plan, hardware)) == [plan.devices[0][0]]
    assert excess_bytes(plan.predicted, plan, hardware) == {}


def test_the_command_line_measures_first_and_says_everything() -> None:
    able = engine("cuda", flags=FLAGS | {"--fit-target", "--no-warmup"})

    argv = preflight_argv(planned(), engine=able, socket_path="/run/s.sock")

    assert argv[-7:] == ("--fit", "on", "--fit-target", "0", "--verbosity", "5", "--no-warmup")
    assert argv.count("--fit") == argv.count("--verbosity") == 1
    assert "--slot-save-path" not in argv
    assert "--n-gpu-layers" in argv


def test_an_engine_that_cannot_fit_cannot_be_run_dry() -> None:
    with pytest.raises(PlanError, match="no --fit"):
        preflight_argv(planned(), engine=replace(CPU, flags=frozenset()), socket_path="")
