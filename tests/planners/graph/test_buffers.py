import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from planners.graph.buffers import BufferKind, BufferLine, measured, parse_buffer_line
from planners.hardware import HOST, DeviceId
from planners.placement import plan_launch
from planners.plan import DeviceBytes, LaunchPlan
from planners.sizes import MIB
from tests.fakes.machines import CPU, CUDA, RULES, machine, nvidia, served

# As llama-server b10434 logs at -lv 4.
LOG = """\
0.00.260.377 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
0.00.260.378 I load_tensors:        CUDA0 model buffer size =    92.10 MiB
0.00.312.117 I llama_context:  CUDA_Host  output buffer size =     0.19 MiB
0.00.312.248 I llama_kv_cache:      CUDA0 KV buffer size =   180.00 MiB
0.00.312.300 I llama_kv_cache:      CUDA0 KV buffer size =    20.00 MiB
0.00.312.400 I llama_memory_recurrent: CUDA0 RS buffer size =     2.00 MiB
0.00.427.475 I sched_reserve:       CUDA0 compute buffer size =    30.00 MiB
0.00.427.480 I sched_reserve:   CUDA_Host compute buffer size =    12.00 MiB
0.00.527.475 I sched_reserve:       CUDA0 compute buffer size =    19.26 MiB
0.00.527.494 I sched_reserve:   CUDA_Host compute buffer size =    10.26 MiB
0.00.527.500 I srv    load_model: initializing, n_slots = 1
"""


def planned(*cards: int) -> LaunchPlan:
    hardware = machine(*(nvidia(i, gib) for i, gib in enumerate(cards)), host_gib=64)
    engine = CUDA if cards else CPU
    plan = plan_launch(served(), hardware=hardware, engines=(engine,), rules=RULES, promised={})
    assert isinstance(plan, LaunchPlan)
    return plan


def lines(log: str) -> list[BufferLine]:
    return [line for text in log.splitlines() if (line := parse_buffer_line(text))]


def mib(size: float) -> int:
    return round(size * MIB)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
            BufferLine("load_tensors", "CPU_Mapped", BufferKind.MODEL, mib(92.10)),
        ),
        (
            "0.00.226.011 I llama_context:        CPU  output buffer size =     0.19 MiB",
            BufferLine("llama_context", "CPU", BufferKind.OUTPUT, mib(0.19)),
        ),
        (
            "load_tensors: RPC0[127.0.0.1:50052] model buffer size = 33.82 MiB",
            BufferLine("load_tensors", "RPC0[127.0.0.1:50052]", BufferKind.MODEL, mib(33.82)),
        ),
        ("llama_kv_cache: size =   45.00 MiB (  2048 cells,  30 layers)", None),
        ("model buffer size = huge", None),
        ("", None),
    ],
)
def test_buffer_lines_are_read_and_others_are_not(text: str, line: BufferLine | None) -> None:
    assert parse_buffer_line(text) == line


def test_buffers_are_summed_per_device_and_the_last_reservation_counts() -> None:
    plan = planned(24)
    gpu = plan.devices[0][0]

    assert measured(lines(LOG), plan) == (
        DeviceBytes(HOST, mib(28.69), 0, mib(0.19) + mib(10.26)),
        DeviceBytes(gpu, mib(92.10), mib(180) + mib(20) + mib(2), mib(19.26)),
    )


def test_of_a_mapped_file_the_host_has_what_no_device_took() -> None:
    # SmolLM2 over two remote devices, as logged: the file is mapped from its first host tensor on.
    one, other = DeviceId("rpc:127.0.0.1:50681"), DeviceId("rpc:127.0.0.1:47643")
    weights = {HOST: mib(56.16), one: mib(27.50), other: mib(37.18)}
    predicted = tuple(DeviceBytes(device, n_bytes, 0, 0) for device, n_bytes in weights.items())
    devices = ((one, "RPC0", 13), (other, "RPC1", 5))
    logged = [
        BufferLine("load_tensors", "CPU_Mapped", BufferKind.MODEL, mib(92.10)),
        BufferLine("load_tensors", "RPC0[127.0.0.1:50681]", BufferKind.MODEL, mib(27.50)),
        BufferLine("load_tensors", "RPC0[127.0.0.1:47643]", BufferKind.MODEL, mib(35.18)),
    ]

    found = measured(logged, replace(planned(24), devices=devices, predicted=predicted))

    # What a device was to have and did not take is the host's.
    assert found[0] == DeviceBytes(HOST, mib(56.16) + mib(37.18) - mib(35.18), 0, 0)


@pytest.mark.parametrize(
    ("buffer", "repacked_mib", "of_host_mib"),
    [("CPU_REPACK", 60, 92.10), ("AMX", 60, 92.10), ("AMX", 95.34, 95.34)],
    ids=["repacked", "for tiles", "all of it for tiles, padded"],
)
def test_weights_repacked_for_the_processor_are_not_counted_in_the_mapped_file_too(
    buffer: str, repacked_mib: float, of_host_mib: float
) -> None:
    plan = replace(planned(), predicted=(DeviceBytes(HOST, mib(92.10), 0, 0),))
    logged = [
        BufferLine("load_tensors", "CPU_Mapped", BufferKind.MODEL, mib(92.10)),
        BufferLine("load_tensors", buffer, BufferKind.MODEL, mib(repacked_mib)),
    ]

    assert measured(logged, plan) == (DeviceBytes(HOST, mib(of_host_mib), 0, 0),)


def test_a_child_on_the_processor_has_only_host_buffers() -> None:
    log = LOG.replace("CUDA0", "  CPU").replace("CUDA_Host", "CPU")

    assert [part.device_id for part in measured(lines(log), planned())] == [HOST]


def test_buffers_of_a_remote_device_are_known_by_its_address() -> None:
    # The engine calls the first device of every server RPC0 here, whatever --device calls it.
    one, other = DeviceId("rpc:127.0.0.1:50052"), DeviceId("rpc:10.0.0.2:50052#1")
    plan = replace(planned(24), devices=((one, "RPC0", 20), (other, "RPC2", 13)))
    logged = [
        BufferLine("load_tensors", "RPC1[10.0.0.2:50052]", BufferKind.MODEL, 20),
        BufferLine("load_tensors", "RPC0[127.0.0.1:50052]", BufferKind.MODEL, 10),
    ]

    assert measured(logged, plan) == (DeviceBytes(one, 10, 0, 0), DeviceBytes(other, 20, 0, 0))


def test_a_device_outside_of_the_plan_is_shown_under_its_own_name() -> None:
    line = BufferLine("clip", "Vulkan3", BufferKind.MODEL, 10)

    assert measured([line], planned()) == (DeviceBytes(DeviceId("Vulkan3"), 10, 0, 0),)


@given(st.text(max_size=600))
def test_any_line_is_read_or_passed_over(text: str) -> None:
    assert parse_buffer_line(text) is None or "buffer size" in text
