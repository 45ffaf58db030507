"""Sizes as people write them: "6GiB", "512MiB", "1.5GB" in, "6.0 GiB" and "7B" out."""

import re

from planners.errors import PlanError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 1000,
    "m": MIB, "mib": MIB, "mb": 1000**2,
    "g": GIB, "gib": GIB, "gb": 1000**3,
    "t": 1 << 40, "tib": 1 << 40, "tb": 1000**4,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]{0,3})\s*", re.ASCII)


class BadSize(PlanError):
    """A text that is no byte size."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"{text!r} is no size; write a number and a unit, like 6GiB or 512MiB")


def parse_size(text: str) -> int:
    """Bytes meant by `text`; a bare number counts bytes. Raises BadSize."""
    match = _SIZE.fullmatch(text)
    if match is None or (unit := _UNITS.get(match[2].lower())) is None:
        raise BadSize(text)
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def format_size(size_bytes: int) -> str:
    """`size_bytes` in the largest unit of 1024 that leaves at least 1, with one decimal."""
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.1f} {name}"
    return f"{sign}{size} B"


def parameter_size(n_params: int) -> str:
    """Parameters as Ollama prints them: "134.52M", "7B", "1.5B"."""
    if n_params >= 1e9:
        billions = n_params / 1e9
        return f"{billions:.0f}B" if billions == int(billions) else f"{billions:.1f}B"
    if n_params >= 1e6:
        return f"{n_params / 1e6:.2f}M"
    return f"{n_params / 1e3:.0f}K" if n_params >= 1e3 else str(n_params)
