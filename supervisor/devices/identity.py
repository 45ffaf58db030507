"""Joins what the sources see into physical cards, so that none is ever counted twice. Pure.

NVML and the kernel know PCI addresses; engines know the names that `--device` takes and give no
address. They are joined by CUDA's or HIP's number where that is certain, else by vendor, size and
model name, in order.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from planners.hardware import Device, DeviceId, DeviceKind
from planners.instances.absence import NEAR
from supervisor.devices.datasheet import bandwidth_bytes_per_s
from supervisor.devices.sighting import SOFTWARE, Sighting
from supervisor.devices.visibility import numbered

_VENDORS = (
    ("nvidia", r"nvidia|geforce|quadro|tesla|^nvml$"),
    ("amd", r"\bamd\b|radeon|instinct|radv|^amdgpu$"),
    ("intel", r"intel|\barc\b"),
    ("apple", r"\bapple\b"),
    ("software", "|".join(SOFTWARE)),
)
_KINDS = (
    DeviceKind.SOFTWARE,
    DeviceKind.REMOTE,
    DeviceKind.INTEGRATED,
    DeviceKind.DISCRETE,
    DeviceKind.UNKNOWN,
)
"""Of two opinions on one card the earlier one holds."""

Card = list[Sighting]
"""All sightings of one physical device, vendor's first."""


def devices_of(
    vendors: Iterable[Sighting],
    engines: Iterable[tuple[Sequence[Sighting], Mapping[str, str]]],
) -> tuple[Device, ...]:
    """One Device per physical card: the vendors' cards in PCI order, then what only engines see.

    Each engine comes with its processes' environment, whose CUDA_VISIBLE_DEVICES and kin renumber.
    """
    cards: list[Card] = [[each] for each in sorted(vendors, key=lambda s: s.pci or "~")]
    for sightings, env in engines:
        backend = sightings[0].source if sightings else ""
        visible = numbered(backend, cards, env)
        for ordinal, sighting in enumerate(sightings):
            card = _card_of(sighting, ordinal, cards=cards, visible=visible)
            if card is None:
                cards.append([sighting])
            else:
                card.append(sighting)
    return tuple(_device(card) for card in cards)


def _card_of(
    sighting: Sighting, ordinal: int, *, cards: Sequence[Card], visible: Sequence[Card]
) -> Card | None:
    """The card that an engine's sighting is of, or None for one not seen so far."""
    if sighting.kind is DeviceKind.REMOTE:  # another machine's memory: each name is its own
        return next((card for card in cards if _calls(card, sighting)), None)
    for card in cards:
        if _calls(card, sighting) and _could_be(card, sighting):
            return card  # a second engine of the same backend
    free = [card for card in cards if not _is_named_by(card, sighting.source)]
    if ordinal < len(visible):
        numbered = visible[ordinal]
        if numbered in free and _could_be(numbered, sighting):
            return numbered
    possible = [card for card in free if _could_be(card, sighting)]
    alike = (card for card in possible if _models(card[0].name) & _models(sighting.name))
    return next(alike, possible[0] if possible else None)


def _could_be(card: Card, sighting: Sighting) -> bool:
    known = card[0]
    if _vendor(known) != _vendor(sighting):
        return False
    integrated = DeviceKind.INTEGRATED in (known.kind, sighting.kind)  # each counts its share anew
    if not integrated and not _near(known.total_bytes, sighting.total_bytes):
        return False
    if _vendor(known) == "amd":  # "Radeon 8060S" is "AMD Radeon Graphics (RADV GFX1151)" elsewhere
        return True
    mine, other = _models(known.name), _models(sighting.name)
    return bool(mine & other) if mine and other else _words(known.name) == _words(sighting.name)


def _near(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return True
    return abs(one - other) <= NEAR * max(one, other)


def vendor_of(*told: str) -> str:
    """Whose a device is by its name or the source that tells of it; "" where none of them says."""
    for vendor, pattern in _VENDORS:
        if any(re.search(pattern, text, re.IGNORECASE) for text in told):
            return vendor
    return ""


def _vendor(sighting: Sighting) -> str:
    return vendor_of(sighting.name, sighting.source)


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.lower()))


def _models(name: str) -> frozenset[str]:
    """The words that tell one model from another: those with a digit."""
    return frozenset(word for word in _words(name) if re.search(r"\d", word))


def _calls(card: Card, sighting: Sighting) -> bool:
    return any(s.source == sighting.source and s.engine_name == sighting.engine_name for s in card)


def _is_named_by(card: Card, backend: str) -> bool:
    return any(s.source == backend and s.engine_name is not None for s in card)


def _device(card: Card) -> Device:
    kinds = {s.kind for s in card}
    if DeviceKind.INTEGRATED in kinds:
        card = [_with_lent(s) for s in card]
    frees = [s.free_bytes for s in card if s.free_bytes is not None]
    totals = [s.total_bytes for s in card if s.total_bytes is not None]
    names = ((s.source, s.engine_name) for s in card if s.engine_name is not None)
    return Device(
        device_id=_device_id(card),
        kind=next(kind for kind in _KINDS if kind in kinds),
        name=next((s.name for s in card if s.name), "unknown device"),
        engine_names=tuple(dict.fromkeys(names)),
        total_bytes=totals[0] if totals else None,
        free_bytes=min(frees, default=None),
        bandwidth_bytes_per_s=_first(
            (
                *(s.bandwidth_bytes_per_s for s in card),
                *(bandwidth_bytes_per_s(s.name) for s in card),
            )
        ),
        link_bytes_per_s=_first(s.link_bytes_per_s for s in card),
        compute_flops=_first(s.compute_flops for s in card),
        numa_node=next((s.numa_node for s in card if s.numa_node is not None), None),
    )


def _with_lent(sighting: Sighting) -> Sighting:
    """The sighting of an integrated GPU, with what its host lends it."""
    if sighting.lent is None or sighting.total_bytes is None or sighting.free_bytes is None:
        return sighting
    total, free = sighting.lent
    return replace(
        sighting, total_bytes=sighting.total_bytes + total, free_bytes=sighting.free_bytes + free
    )


def _first(figures: Iterable[float | None]) -> float | None:
    return next((figure for figure in figures if figure is not None), None)


def _device_id(card: Card) -> DeviceId:
    if pci := next((s.pci for s in card if s.pci), None):
        return DeviceId(f"pci:{pci}")
    if uuid := next((s.uuid for s in card if s.uuid), None):
        return DeviceId(f"uuid:{uuid}")
    first = next((s for s in card if s.engine_name), card[0])
    return DeviceId(f"{first.source}:{first.engine_name or first.name}")
