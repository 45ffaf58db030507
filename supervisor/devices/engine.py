"""What the engines see: the only names that `--device` takes, the only view of some cards."""

from collections.abc import Sequence

from planners.backends import Engine, EngineDevice
from planners.hardware import DeviceKind
from supervisor.devices.sighting import Reading, Sighting, kind_by_name

REMOTE_PREFIX = "RPC"


class EngineSource:
    """One engine's devices, as it last listed them."""

    def __init__(self, engine: Engine, devices: Sequence[EngineDevice], *, is_fresh: bool) -> None:
        self.name = engine.backend
        self._devices, self._is_fresh = tuple(devices), is_fresh

    def read(self) -> Reading:
        """Its devices in its own order; free is unknown where the list is not of this moment."""
        return Reading(tuple(self._sighting(device) for device in self._devices))

    def _sighting(self, device: EngineDevice) -> Sighting:
        remote = device.name.startswith(REMOTE_PREFIX)
        return Sighting(
            source=self.name,
            name=device.description,
            kind=DeviceKind.REMOTE if remote else kind_by_name(device.description),
            total_bytes=device.total_bytes or None,
            free_bytes=device.free_bytes if self._is_fresh else None,
            engine_name=device.name,
        )
