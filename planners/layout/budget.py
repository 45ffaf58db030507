"""How many bytes a launch may take on each device and on the host."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from planners.hardware import HOST, Device, DeviceId, DeviceKind, HardwareProfile
from planners.reasons import Reason, unused

MOST_DEVICES = (
    15  # in one plan: llama-server refuses a --tensor-split of 16 (llama_max_devices, b10434)
)
SPARED = f"{MOST_DEVICES} faster or larger devices are"
CUDA_CONTEXT_BYTES = 600 << 20  # 107 to 555 MiB were reported, by the number of multiprocessors
CUDA_CONTEXT_SHARE = 0.03
CONTEXT_BYTES = 256 << 20  # Vulkan, Metal and others
ENDLESS_BYTES = 1 << 60  # more than any machine has
_BY_SPEED = (
    DeviceKind.DISCRETE,
    DeviceKind.UNKNOWN,
    DeviceKind.INTEGRATED,
    DeviceKind.SOFTWARE,
    DeviceKind.REMOTE,
)


class Budget(Struct, frozen=True):
    """One device's room, as one engine sees it."""

    device_id: DeviceId
    engine_name: str
    label: str
    room_bytes: int
    """What a launch may take, its overhead included; below 0 where too much is promised."""
    total_bytes: int
    overhead_bytes: int
    shares_host: bool
    """Its bytes are the host's too."""
    is_wanted: bool = False
    """It is the processor over again, and there only because the operator asked for it by name."""


class Budgets(Struct, frozen=True):
    """The room everywhere, fastest device first."""

    host_bytes: int
    devices: tuple[Budget, ...]
    notes: tuple[Reason, ...]
    """Each device left out, and why."""
    spared: tuple[Budget, ...] = ()
    """Devices above MOST_DEVICES, with which nothing is planned."""

    def room_bytes(self, device_id: DeviceId) -> int:
        """The room on one device or on HOST."""
        if device_id == HOST:
            return self.host_bytes
        known = (*self.devices, *self.spared)
        return {budget.device_id: budget.room_bytes for budget in known}[device_id]

    def changed_by(self, bytes_by_device: Mapping[DeviceId, int]) -> "Budgets":
        """With that many bytes more on each of them, or fewer."""
        devices = tuple(
            replace(budget, room_bytes=budget.room_bytes + bytes_by_device.get(budget.device_id, 0))
            for budget in self.devices
        )
        host_room = self.host_bytes + bytes_by_device.get(HOST, 0)
        return replace(self, host_bytes=host_room, devices=devices)


def budgets(
    hardware: HardwareProfile,
    *,
    backend: str,
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int],
) -> Budgets:
    """The room for one more launch by an engine of `backend`.

    `promised` is spoken for though it counts as free; `held` is what our running instances have
    taken, which free figures already lack, and which counts against an operator's limit.
    """
    found, notes = [], []
    for device in hardware.devices:
        match _budget(device, backend=backend, promised=promised, held=held):
            case Budget() as budget:
                found.append((device, budget))
            case str() as why:
                notes.append(unused(device.device_id, device.name, why))
    if any(device.kind is DeviceKind.DISCRETE for device, _ in found):
        for device, _ in found:
            if device.kind is DeviceKind.INTEGRATED:
                why = "a card of its own is there, and its memory is the host's"
                notes.append(unused(device.device_id, device.name, why))
        found = [pair for pair in found if pair[0].kind is not DeviceKind.INTEGRATED]
    ranked = _told_apart([b for _, b in sorted(found, key=lambda pair: _speed_rank(pair[0]))])
    used = sorted(ranked, key=lambda b: b.room_bytes <= b.overhead_bytes)[:MOST_DEVICES]
    spared = tuple(budget for budget in ranked if budget not in used)
    notes += (unused(b.device_id, b.label, SPARED) for b in spared)
    return Budgets(
        host_bytes=host_bytes(hardware, promised=promised, held=held),
        devices=tuple(budget for budget in ranked if budget in used),
        notes=tuple(notes),
        spared=spared,
    )


def _told_apart(found: Sequence[Budget]) -> tuple[Budget, ...]:
    """The budgets, with the engine's name of each in the label where cards are called alike."""
    alike = Counter(budget.label for budget in found)
    return tuple(
        replace(budget, label=f"{budget.label} {budget.engine_name}")
        if alike[budget.label] > 1
        else budget
        for budget in found
    )


def host_bytes(
    hardware: HardwareProfile, *, promised: Mapping[DeviceId, int], held: Mapping[DeviceId, int]
) -> int:
    """Host memory that a launch may take."""
    host = hardware.host
    room = host.available_bytes - host.reserve_bytes
    if host.limit_bytes is not None:
        room = min(room, host.limit_bytes - held.get(HOST, 0))
    return room - promised.get(HOST, 0)


def freed(hardware: HardwareProfile, bytes_by_device: Mapping[DeviceId, int]) -> HardwareProfile:
    """The machine as it were with those bytes given back."""

    def more(device: Device) -> Device:
        if device.free_bytes is None:
            return device
        free = device.free_bytes + bytes_by_device.get(device.device_id, 0)
        total = device.total_bytes
        return replace(device, free_bytes=free if total is None else min(free, total))

    host = hardware.host
    available = min(host.available_bytes + bytes_by_device.get(HOST, 0), host.total_bytes)
    return replace(
        hardware,
        host=replace(host, available_bytes=max(available, host.available_bytes)),
        devices=tuple(more(device) for device in hardware.devices),
    )


def emptied(hardware: HardwareProfile) -> HardwareProfile:
    """The machine as it were with nothing running."""
    host = hardware.host
    most = min(host.total_bytes, host.cgroup_limit_bytes or host.total_bytes)
    return replace(
        hardware,
        host=replace(host, available_bytes=max(most, host.available_bytes)),
        devices=tuple(replace(d, free_bytes=d.total_bytes) for d in hardware.devices),
    )


def boundless(hardware: HardwareProfile) -> HardwareProfile:
    """The machine as it were with a host whose memory never ends."""
    host = replace(
        hardware.host,
        total_bytes=ENDLESS_BYTES,
        available_bytes=ENDLESS_BYTES,
        cgroup_limit_bytes=None,
        limit_bytes=None,
    )
    return replace(hardware, host=host)


def _budget(
    device: Device,
    *,
    backend: str,
    promised: Mapping[DeviceId, int],
    held: Mapping[DeviceId, int],
) -> Budget | str:
    """The device's room, or why it is left out."""
    if not device.use:
        if device.kind is DeviceKind.SOFTWARE:
            return "it is the processor posing as a GPU"
        return "the configuration says so, or a variable that hides it"
    engine_name = device.engine_name(backend)
    if engine_name is None and device.kind is DeviceKind.REMOTE and not device.engine_names:
        return "it does not answer"
    if engine_name is None:
        return f"the {backend} engine does not see it"
    free = device.total_bytes if device.free_bytes is None else device.free_bytes
    if free is None:
        return "its memory is unknown"
    room = free - device.reserve_bytes
    if device.limit_bytes is not None:
        room = min(room, device.limit_bytes - held.get(device.device_id, 0))
    total = free if device.total_bytes is None else device.total_bytes
    return Budget(
        device_id=device.device_id,
        engine_name=engine_name,
        label=device.name,
        room_bytes=room - promised.get(device.device_id, 0),
        total_bytes=total,
        overhead_bytes=_overhead_bytes(device.kind, backend=backend, total_bytes=total),
        shares_host=device.shares_host,
        is_wanted=device.kind is DeviceKind.SOFTWARE or device.is_loopback,
    )


def _overhead_bytes(kind: DeviceKind, *, backend: str, total_bytes: int) -> int:
    """What the driver takes per process before any buffer."""
    if kind in (DeviceKind.SOFTWARE, DeviceKind.REMOTE):
        return 0
    if backend in ("cuda", "hip"):
        return max(CUDA_CONTEXT_BYTES, int(total_bytes * CUDA_CONTEXT_SHARE))
    return CONTEXT_BYTES


def _speed_rank(device: Device) -> tuple[int, int, str]:
    """Fastest first; among equals the larger card, which is as a rule the faster one."""
    return _BY_SPEED.index(device.kind), -(device.total_bytes or 0), device.device_id
