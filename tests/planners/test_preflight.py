from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.errors import PlanError
from planners.graph.buffers import parse_buffer_line
from planners.hardware import HOST, DeviceId, HardwareProfile
from planners.layout.dry_runs import Reserved
from planners.placement import plan_launch
from planners.plan import DeviceBytes, LaunchPlan
from planners.preflight import DryRun, corrected, is_told_of, preflight_argv
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
    told = said.told(on_two())
    for device, mib in ((FAR, 10.26), (GPU, 4.76), (HOST, 3.51)):
        assert told[device].least_bytes == pytest.approx((mib - 0.01) * MIB, abs=1)
        assert told[device].most_bytes == pytest.approx((mib + 0.01) * MIB, abs=1)


def test_without_exact_lines_the_table_leaves_a_mebibyte_open() -> None:
    said = heard([line for line in LOG.splitlines() if "buffer size" not in line])

    assert said.told(on_two()) == {
        FAR: Reserved(10 * MIB, 11 * MIB),
        GPU: Reserved(4 * MIB, 5 * MIB),
        HOST: Reserved(3 * MIB, 4 * MIB),
    }


def test_a_table_that_does_not_end_is_no_answer() -> None:
    assert not heard(LOG.splitlines()[:8]).is_complete
    assert not heard(LOG.splitlines()[:5] + ["garbage"] * 3).is_complete


@given(st.lists(st.text(max_size=200), max_size=40))
def test_garbage_is_passed_over(lines: list[str]) -> None:
    assert heard(lines).told(on_two()) == {}


@given(cuts=st.lists(st.integers(0, 220), min_size=10, max_size=10))
def test_a_torn_log_is_read_or_passed_over(cuts: list[int]) -> None:
    torn = [line[:cut] for line, cut in zip(LOG.splitlines(), cuts, strict=True)]

    told = heard(torn).told(on_two()).values()
    assert all(0 <= each.least_bytes <= each.most_bytes for each in told)


def test_weights_and_caches_stay_and_compute_is_replaced() -> None:
    parts = (DeviceBytes(HOST, 1, 2, 3, 4, 5), DeviceBytes(GPU, 10, 20, 30, 40, 50))
    told = {GPU: Reserved(35, 38), HOST: Reserved(7, 9)}

    assert corrected(parts, told, output_bytes=2, growth_bytes=6) == (
        DeviceBytes(HOST, 1, 2, 9, 4, margin_bytes=2 + 6),
        DeviceBytes(GPU, 10, 20, 35, 40, margin_bytes=3),
    )


def test_within_what_the_print_leaves_open_the_prediction_counts() -> None:
    parts = (DeviceBytes(GPU, 10, 20, 36, 40, 50),)

    (found,) = corrected(parts, {GPU: Reserved(35, 38)}, output_bytes=0, growth_bytes=0)

    assert (found.compute_bytes, found.margin_bytes) == (36, 2)


def test_over_several_devices_a_dry_run_tells_nothing() -> None:
    other = DeviceId("other gpu")
    parts = (DeviceBytes(other, 10, 20, 30, 40, 50), DeviceBytes(GPU, 10, 20, 30, 40, 50))
    told = {other: Reserved(25, 26), GPU: Reserved(35, 36)}

    assert corrected(parts, told, output_bytes=0, growth_bytes=0) == parts


def test_over_several_devices_it_tells_of_an_unknown_graph_to_a_fifth() -> None:
    other = DeviceId("other gpu")
    parts = (DeviceBytes(other, 10, 20, 300, 40, 500), DeviceBytes(GPU, 10, 20, 90, 40, 50))
    told = {other: Reserved(100, 100), GPU: Reserved(100, 100)}

    found = corrected(parts, told, output_bytes=0, growth_bytes=0, is_known=False)

    assert found == (
        DeviceBytes(other, 10, 20, 120, 40, margin_bytes=0),
        DeviceBytes(GPU, 10, 20, 90, 40, margin_bytes=30),
    )


def test_a_device_of_which_nothing_was_said_keeps_its_margin() -> None:
    parts = (DeviceBytes(GPU, 10, 20, 30, 40, 50),)

    assert corrected(parts, {}, output_bytes=0, growth_bytes=0) == parts


@pytest.mark.parametrize(
    ("devices", "known", "unknown"),
    [
        pytest.param((), True, True, id="the processor"),
        pytest.param((HOST, GPU), True, True, id="one device"),
        pytest.param((GPU, DeviceId("other gpu")), False, True, id="several"),
        pytest.param((FAR,), False, False, id="remote"),
    ],
)
def test_a_dry_run_tells_of_devices_of_this_machine_what_the_drawing_does_not(
    devices: tuple[DeviceId, ...], known: bool, unknown: bool
) -> None:
    assert is_told_of(devices, is_known=True) is known
    assert is_told_of(devices, is_known=False) is unknown


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
