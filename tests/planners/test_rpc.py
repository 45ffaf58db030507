import pytest
from msgspec.structs import replace

from planners.hardware import Device, DeviceId, DeviceKind
from planners.rpc import device_id, device_of_buffer, server_of, servers_of
from tests.fakes.machines import machine, nvidia

CARD = nvidia(0, 24)


def remote(server: str, index: int, *, answers: bool = True) -> Device:
    return replace(
        CARD,
        device_id=device_id(server, index),
        kind=DeviceKind.REMOTE,
        engine_names=(("cuda", "RPC9"),) if answers else (),
    )


A, A_1, B = remote("a:1", 0), remote("a:1", 1), remote("b:1", 0)
SILENT = remote("c:1", 0, answers=False)


def test_a_device_is_known_by_its_server_and_its_number_there() -> None:
    assert (A.device_id, A_1.device_id) == ("rpc:a:1", "rpc:a:1#1")
    assert [server_of(d.device_id) for d in (A, A_1, CARD)] == ["a:1", "a:1", None]


@pytest.mark.parametrize(
    ("used", "servers", "names"),
    [
        pytest.param([CARD], (), {}, id="none"),
        pytest.param([B], ("b:1",), {B: "RPC0"}, id="the second alone is the first"),
        pytest.param([A_1], ("a:1",), {A: "RPC0", A_1: "RPC1"}, id="one of two on a server"),
        pytest.param(
            [B, A_1], ("a:1", "b:1"), {A: "RPC0", A_1: "RPC1", B: "RPC2"}, id="in the order known"
        ),
        pytest.param([SILENT], (), {}, id="one that does not answer"),
    ],
)
def test_only_servers_in_use_are_named_and_their_devices_numbered_through(
    used: list[Device], servers: tuple[str, ...], names: dict[Device, str]
) -> None:
    found = servers_of(machine(CARD, A, A_1, SILENT, B), [d.device_id for d in used])

    assert found == (servers, {device.device_id: name for device, name in names.items()})


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        ("RPC0[10.0.0.2:50052]", "rpc:10.0.0.2:50052"),
        ("RPC1[10.0.0.2:50052]", "rpc:10.0.0.2:50052#1"),
        ("RPC0", None),
        ("CUDA0", None),
        ("CPU_Mapped", None),
    ],
)
def test_a_buffer_names_its_server(buffer: str, device: str | None) -> None:
    assert device_of_buffer(buffer) == (None if device is None else DeviceId(device))
