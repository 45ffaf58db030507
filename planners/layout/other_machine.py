"""Planning for a machine that is not this one: which engines it may be assumed to have."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from planners.backends import DEFAULT_ORDER, Engine
from planners.hardware import HardwareProfile


def engines_there(hardware: HardwareProfile, *, here: Sequence[Engine]) -> tuple[Engine, ...]:
    """One engine per backend that names a device of that machine, and one for its processor.

    A recorded profile says what devices are called, not which builds lie there. So each stands for
    a build with the options of the best known one here; what is here and names nothing there, such
    as CUDA for a Mac, is left out.
    """
    named = {backend for device in hardware.devices for backend, _ in device.engine_names}
    order = (*DEFAULT_ORDER, *sorted(named - set(DEFAULT_ORDER)))
    return tuple(
        replace(_stand_in(b, here), has_tiles=hardware.host.has_tiles)
        for b in order
        if b in named or b == "cpu"
    )


def _stand_in(backend: str, here: Iterable[Engine]) -> Engine:
    engines = sorted(here, key=lambda engine: engine.backend != backend)
    if not engines:
        return Engine(
            engine_id=f"{backend}-there",
            backend=backend,
            path="llama-server",
            source="recorded",
            env=(),
            flags=frozenset(),
            devices=(),
            version="unknown",
        )
    return replace(engines[0], engine_id=f"{backend}-there", backend=backend, path="llama-server")
