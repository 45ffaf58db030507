"""How CUDA_VISIBLE_DEVICES and its kin number cards anew, per backend. Pure.

An engine obeys its own variables by itself; what is decided here is which physical card its first,
second, … device is. Each variable counts in the numbers that the one before it left.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from planners.hardware import DeviceId
from supervisor.devices.sighting import Sighting

_SOURCE = {"cuda": "nvml", "hip": "amdgpu"}
_VARIABLES = {
    "cuda": (("CUDA_VISIBLE_DEVICES",),),
    # ROCr goes first and HIP takes what it leaves; of HIP's own the first that is set counts.
    "hip": (
        ("ROCR_VISIBLE_DEVICES",),
        ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    ),
    "vulkan": (("GGML_VK_VISIBLE_DEVICES",),),
}
_OWN = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
}
"""What keeps programs off a vendor's cards. HIP follows CUDA's variable too, but whoever sets that
means NVIDIA's."""
_Sighted = TypeVar("_Sighted", bound=Sequence[Sighting])


def numbered(backend: str, cards: Sequence[_Sighted], env: Mapping[str, str]) -> Sequence[_Sighted]:
    """The cards that `backend` numbers 0, 1, …; () where its numbers tell nothing.

    Both vendors number by PCI address: children run with CUDA_DEVICE_ORDER=PCI_BUS_ID, and the
    kernel's amdgpu probes in that order. Vulkan's loader has an order of its own.
    """
    source = _SOURCE.get(backend)
    visible = [card for card in cards if card[0].source == source]
    for told in _told(backend, env):
        visible = list(_chosen(visible, told))
    return visible


def hiding(backend: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that hide devices from an engine of `backend`, as "NAME=value"."""
    return tuple(
        f"{name}={env[name]}"
        for names in _VARIABLES.get(backend, ())
        for name in names
        if name in env
    )


def hidden(cards: Sequence[Sighting], env: Mapping[str, str]) -> Mapping[DeviceId, str]:
    """Cards that their vendor's own variable hides → that variable, as "NAME=value".

    Who hides a card so means it for every program: that Vulkan shows it all the same is no leave.
    """
    found: dict[DeviceId, str] = {}
    in_order = [(card,) for card in sorted(cards, key=lambda card: card.pci or "~")]
    for backend, names in _OWN.items():
        told = {name: env[name] for name in names if name in env}
        if not told:
            continue
        left = {card.device_id for (card,) in numbered(backend, in_order, told)}
        which = ", ".join(f"{name}={value}" for name, value in told.items())
        mine = (card for card in cards if card.source == _SOURCE[backend])
        found |= {c.device_id: which for c in mine if c.device_id and c.device_id not in left}
    return found


def _told(backend: str, env: Mapping[str, str]) -> Iterator[str]:
    for names in _VARIABLES.get(backend, ()):
        told = next((env[name] for name in names if name in env), None)
        if told is not None:
            yield told


def _chosen(cards: Sequence[_Sighted], told: str) -> Iterator[_Sighted]:
    """Those that a variable names, in its order; CUDA and HIP stop at a name they do not know."""
    for part in (part.strip() for part in told.split(",")):
        found = _named(cards, part)
        if found is None:
            return
        yield found


def _named(cards: Sequence[_Sighted], part: str) -> _Sighted | None:
    if part.isdecimal():
        return cards[int(part)] if int(part) < len(cards) else None
    by_uuid = (card for card in cards if part and (card[0].uuid or "").startswith(part))
    return next(by_uuid, None)
