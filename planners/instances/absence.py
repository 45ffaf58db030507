"""Which wanted devices are missing, and why as far as anybody says. Pure.

Wanted is what the operator's rules name to be used or limited, every configured RPC server, and
what was here before and used.
"""

from collections.abc import Iterator, Mapping, Sequence

from planners.hardware import Absence, Device, DeviceId, DeviceKind
from planners.settings import DeviceRule

NOBODY = "neither its driver nor an engine sees it"


def absences(
    devices: Sequence[Device],
    *,
    rules: Sequence[DeviceRule],
    seen: Mapping[DeviceId, Device],
    told: Sequence[str],
    silent: Mapping[DeviceId, str],
) -> tuple[Absence, ...]:
    """Every wanted device that is missing, and why.

    `seen`: usable devices of before. `told`: what sources could not read, the likely reason.
    `silent`: why RPC servers, by their first device, cannot be used.
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
    return (*missing.values(), *remote, *named)


def remembered(
    seen: Mapping[DeviceId, Device], devices: Sequence[Device]
) -> Mapping[DeviceId, Device]:
    """`seen` with what is here and usable now; remote devices have a health of their own."""
    kinds = (DeviceKind.SOFTWARE, DeviceKind.REMOTE)
    here = {d.device_id: d for d in devices if _is_usable(d) and d.use and d.kind not in kinds}
    return {**seen, **here}


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
