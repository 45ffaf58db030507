"""What instances take, of which part."""

from planners.hardware import HOST, Device, DeviceKind
from planners.instances.taken import taken
from planners.sizes import GIB
from planners.view import InstanceState
from tests.fakes.views import (
    CARD,
    A,
    B,
    hardware,
    seen,
)


def test_every_byte_of_ours_is_counted_once() -> None:
    llvmpipe = Device(
        device_id=CARD,
        kind=DeviceKind.SOFTWARE,
        name="llvmpipe",
        engine_names=(("vulkan", "Vulkan0"),),
        total_bytes=2 * GIB,
        free_bytes=2 * GIB,
    )
    ready, loading = seen(A), seen(B, InstanceState.LOADING)

    ours = taken(hardware(devices=(llvmpipe,)), (ready, loading))

    for part, counted in ((ready, "total_bytes"), (loading, "upper_bytes")):
        assert getattr(part.plan.predicted[0], counted) > 0
    assert ours.promised[HOST] + ours.held[HOST] == (
        ready.plan.bytes_on(HOST) + loading.plan.predicted[0].upper_bytes
    )
