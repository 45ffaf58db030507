"""Which wanted devices are missing, and why as far as anybody says. Pure.

Wanted is what the operator's rules name to be used or limited, every configured RPC server, what
was here before and used, and the cards of a driver that is there and fails.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from planners.hardware import Absence, Device, DeviceId, DeviceKind
from planners.settings import DeviceRule

NOBODY = "neither its driver nor an engine sees it"
A_CARD = "a card"
"""One that no source could read: nobody knows its name."""
NEAR = 0.1  # engines report a card's usable memory, up to a tenth less than its vendor does


def absences(
    devices: Sequence[Device],
    *,
    rules: Sequence[DeviceRule],
    seen: Mapping[DeviceId, Device],
    told: Sequence[str],
    silent: Mapping[DeviceId, str],
    faults: Sequence[str] = (),
) -> tuple[Absence, ...]:
    """Every wanted device that is missing, and why.

    `seen`: usable devices of before. `told`: what sources could not read, the likely reason.
    `silent`: why RPC servers, by their first device, cannot be used. `faults`: of `told`, what
    keeps cards away that may never have been seen.
    """
    here = {device.device_id: device for device in devices}
    why = "; ".join(told) or NOBODY
    missing = {
        device_id: Absence(f"{before.name} ({device_id})", _gone(here.get(device_id), why))
        for device_id, before in seen.items()
        if not _is_usable(here.get(device_id)) and not _is_unwanted(before, rules)
    }
    remote = (
        Absence(d.name, silent[d.device_id]) for d in devices if d.device_id in silent and d.use
    )
    named = (
        Absence(rule.name, why)
        for rule in _wanting(rules)
        if all(rule_rank(rule, device) is None for device in (*devices, *_of(seen, missing)))
    )
    unread = () if missing else (Absence(A_CARD, fault) for fault in faults)
    return (*missing.values(), *unread, *remote, *named)


def remembered(
    seen: Mapping[DeviceId, Device], devices: Sequence[Device]
) -> Mapping[DeviceId, Device]:
    """`seen` with what is here and usable now; remote devices have a health of their own.

    A card that got its address only now, since its driver came late, is no longer looked for under
    the name that an engine gave it.
    """
    kinds = (DeviceKind.SOFTWARE, DeviceKind.REMOTE)
    here = {d.device_id: d for d in devices if _is_usable(d) and d.use and d.kind not in kinds}
    kept = {
        device_id: before
        for device_id, before in seen.items()
        if not any(is_renamed(before, now) for now in devices)
    }
    return {**kept, **here}


def known_again(devices: Sequence[Device], seen: Mapping[DeviceId, Device]) -> tuple[Device, ...]:
    """`devices`; a card that only engines tell of now keeps the identity it had before.

    A vendor's library that hangs or fails takes a card's address along, not the card: plans that
    run on it, rules and what was learned go by the address.
    """
    here = {device.device_id for device in devices}
    away = [before for before in seen.values() if before.device_id not in here]
    return tuple(_known(device, away) for device in devices)


def is_renamed(one: Device, other: Device) -> bool:
    """True where both are one card, once by its address and once by an engine's name for it."""
    if one.has_address == other.has_address or DeviceKind.REMOTE in (one.kind, other.kind):
        return False
    return bool({*one.engine_names} & {*other.engine_names}) and _alike(one, other)


def _known(device: Device, away: Sequence[Device]) -> Device:
    if device.has_address or device.free_bytes is None:  # None: an engine said so once, not now
        return device
    matching = [before for before in away if is_renamed(before, device)]
    if len(matching) != 1:
        return device
    (before,) = matching
    return replace(before, engine_names=device.engine_names, free_bytes=device.free_bytes)


def _alike(one: Device, other: Device) -> bool:
    """Whether their sizes could be one card's; an integrated GPU's is what the host can lend."""
    sizes = (one.total_bytes, other.total_bytes)
    if DeviceKind.INTEGRATED in (one.kind, other.kind) or None in sizes:
        return True
    known = [size for size in sizes if size is not None]
    return max(known) - min(known) <= NEAR * max(known)


def rule_rank(rule: DeviceRule, device: Device) -> int | None:
    """How a rule names a device: 0 by id, 1 by engine name, 2 by vendor's name, None not at all."""
    wanted = rule.name.casefold()
    if wanted == device.device_id.casefold():
        return 0
    if any(wanted == name.casefold() for _, name in device.engine_names):
        return 1
    return 2 if wanted == device.name.casefold() else None


def _wanting(rules: Sequence[DeviceRule]) -> Iterator[DeviceRule]:
    for rule in rules:
        if rule.use or (rule.use is None and rule.limit_bytes is not None):
            yield rule


def _is_usable(device: Device | None) -> bool:
    return device is not None and bool(device.engine_names)


def _is_unwanted(device: Device, rules: Sequence[DeviceRule]) -> bool:
    return any(rule.use is False and rule_rank(rule, device) is not None for rule in rules)


def _gone(now: Device | None, why: str) -> str:
    return why if now is None else "its driver still sees it, but no engine does any more"


def _of(seen: Mapping[DeviceId, Device], missing: Mapping[DeviceId, Absence]) -> Iterator[Device]:
    """Devices that are counted as missing already, so that no rule counts them again."""
    return (seen[device_id] for device_id in missing)
