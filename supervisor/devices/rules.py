"""What the operator's rules make of a machine. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from planners.hardware import Device, DeviceId, DeviceKind, Host, Note, NoteKind
from planners.instances.absence import rule_rank
from planners.settings import DeviceRule, MemoryRule, PlacementRules

# NVIDIA's MIG user guide, "CUDA device enumeration".
ONE_SLICE = (
    "CUDA shows a process one MIG slice, and CUDA_VISIBLE_DEVICES=MIG-UUID in [backends.NAME] env"
    " says which"
)


def ruled_host(host: Host, rule: MemoryRule) -> Host:
    """`host` under `[memory]`."""
    return replace(host, limit_bytes=rule.limit_bytes, reserve_bytes=rule.reserve_bytes)


def ruled_device(device: Device, rules: PlacementRules, *, is_hidden: bool = False) -> Device:
    """`device` under the rules that name it; where several do, the most exact one decides each key.

    Without a rule a software device is left alone, since it is the CPU over again, only slower, and
    so is a card that its vendor's variable hides.
    """
    ranked = (
        (rank, rule) for rule in rules.devices if (rank := rule_rank(rule, device)) is not None
    )
    mine = [rule for _, rule in sorted(ranked, key=lambda pair: pair[0])]
    uses = (rule.use for rule in mine if rule.use is not None)
    limits = (rule.limit_bytes for rule in mine if rule.limit_bytes is not None)
    reserves = (rule.reserve_bytes for rule in mine if rule.reserve_bytes is not None)
    return replace(
        device,
        limit_bytes=next(limits, None),
        reserve_bytes=next(reserves, rules.device_reserve_bytes),
        use=next(uses, device.kind is not DeviceKind.SOFTWARE and not is_hidden),
    )


def sharing(device: Device, host: Host, *, carved_out: tuple[int, int] | None = None) -> Device:
    """`device`, but an integrated GPU has no more memory than its host has available.

    One pool: placement counts its bytes against the host's reserve and limit too. The (total, free)
    bytes that the firmware carved out for it are no part of the host's memory; where they alone
    are more (Strix Halo set to 96 of 128 GB), they are its pool and the host's is left to the host.
    """
    if device.kind is not DeviceKind.INTEGRATED:
        return device
    known = (device.total_bytes, device.free_bytes, host.available_bytes)
    lent = min(n for n in known if n is not None)
    if carved_out is not None and carved_out[1] > lent:
        total, free = carved_out
        if device.free_bytes is not None:
            free = min(free, device.free_bytes)
        return replace(device, total_bytes=total, free_bytes=free, is_carved_out=True)
    # Where nobody tells its size (NVML on a GB10), all of the one memory is its own.
    total = host.total_bytes if device.total_bytes is None else device.total_bytes
    return replace(device, total_bytes=total, free_bytes=lent)


def unmatched(rules: Sequence[DeviceRule], devices: Sequence[Device]) -> Iterator[Note]:
    """A note per rule that names no device: a typing error, or a card that is gone."""
    names = ", ".join(f"{d.device_id} ({d.name})" for d in devices) or "none"
    for rule in rules:
        if all(rule_rank(rule, device) is None for device in devices):
            text = f'[devices."{rule.name}"] names no device of this machine; there are: {names}'
            yield Note(NoteKind.RULE, text)


def unserved(devices: Sequence[Device], *, hiding: Sequence[str]) -> Iterator[Note]:
    """A note per card that no engine can use; `hiding` are variables that hide devices from one."""
    told = ", ".join(dict.fromkeys(hiding))
    remedy = f"{told} may hide it" if told else "scripts/build_backends.sh can build one"
    for device in devices:
        if not device.engine_names:
            why = ONE_SLICE if is_other_slice(device, devices) else remedy
            text = f"{device.name} ({device.device_id}): no engine here sees it; {why}"
            yield Note(NoteKind.DEVICE, text, device.device_id)


def is_other_slice(device: Device, devices: Sequence[Device]) -> bool:
    """True for a part of a cut card of which an engine sees another part."""
    return device.is_slice and any(d.is_slice and d.engine_names for d in devices)


def left_alone(devices: Sequence[Device], hidden: Mapping[DeviceId, str]) -> Iterator[Note]:
    """A note per card that another backend sees, and that is not used since a variable hides it."""
    for device in devices:
        told = hidden.get(device.device_id)
        if told is not None and device.engine_names and not device.use:
            text = (
                f"{device.name} ({device.device_id}) is left alone, since {told} hides it;"
                f' [devices."{device.device_id}"] use = true would use it as'
                f" {device.engine_names[0][1]}"
            )
            yield Note(NoteKind.DEVICE, text, device.device_id)


def unclear(devices: Sequence[Device], *, hiding: Sequence[str]) -> Iterator[Note]:
    """A note per Vulkan device that may be another card of the same name.

    Vulkan numbers cards in an order of its own: where a variable hides one of several equal cards,
    nobody can tell which; a wrong guess would cost what the other has free.
    """
    told = [each for each in hiding if each.startswith("GGML_VK_VISIBLE_DEVICES=")]
    for device in devices if told else ():
        twins = [d for d in devices if d.name == device.name and d.pci is not None]
        if device.engine_name("vulkan") and any(not d.engine_name("vulkan") for d in twins):
            text = (
                f"{device.engine_name('vulkan')} is one of {len(twins)} cards named {device.name}:"
                f" with {told[0]} nobody can tell which; leave the variable out and use"
                ' [devices."ID"] use = false'
            )
            yield Note(NoteKind.DEVICE, text, device.device_id)
