"""Which mmproj file belongs to which model of the same folder. Pure: file names in, pairs out.

People name them "mmproj-MODEL-f16.gguf", "MODEL.mmproj-Q8_0.gguf", or just "mmproj-F16.gguf".
"""

import re
from bisect import bisect
from collections.abc import Iterable, Sequence

_TYPE = r"(?:i?q[0-9][a-z0-9_]*|bf16|fp?16|f(?:p)?32|ud|imat|i1|mxfp4(?:_moe)?)"
_TRAILING_TYPE = re.compile(rf"(?:^|[-._]){_TYPE}$")
_GENERIC = ("", "model")  # llava's "mmproj-model-f16.gguf" says nothing of its model
_BEST_TYPES = ("f16", "bf16", "f32")  # as converted; quantised ones come after


def is_projector_name(name: str) -> bool:
    """True for names that projectors have; names are without folder and .gguf here."""
    return "mmproj" in name.lower()


def base_name(name: str) -> str:
    """What a file's name says of its model: lower case, without "mmproj" and its tensor type."""
    base = name.lower().replace("mmproj", "")
    base = re.sub(r"([-._])[-._]+", r"\1", base).strip("-._")
    while (shorter := _TRAILING_TYPE.sub("", base)) != base:
        base = shorter
    return base


class Projectors:
    """The projectors beside some models. A folder may hold thousands: each name is read once."""

    def __init__(self, projectors: Iterable[str], *, models: Iterable[str]) -> None:
        bases = sorted({base_name(name) for name in models})
        self._is_one_model = len(bases) == 1
        self._best: dict[str, str] = {}
        """By what a model's name must begin with."""
        for name in projectors:
            begins = "" if self._is_one_model else _claimed(base_name(name), bases)
            if begins is not None:
                best = min(self._best.get(begins, name), name, key=_preference)
                self._best[begins] = best

    def of(self, model: str) -> str | None:
        """Which of them is `model`'s; None where none is."""
        own = "" if self._is_one_model else base_name(model)
        begins = (own[:length] for length in sorted({len(each) for each in self._best}))
        fitting = {self._best[each] for each in begins if each in self._best}
        return min(fitting, key=_preference, default=None)


def _claimed(projector: str, bases: Sequence[str]) -> str | None:
    """What the names of its models begin with, and no other's; `bases` are sorted."""
    if projector in _GENERIC:
        return None
    at = bisect(bases, projector)  # what has most in common with it stands next to it
    longest = max((_common(projector, base) for base in bases[max(0, at - 1) : at + 1]), default=0)
    return projector[:longest] if longest >= min(len(projector), 4) else None


def _common(one: str, other: str) -> int:
    """Characters that both begin with."""
    pairs = zip(one, other, strict=False)
    return next(
        (i for i, (a, b) in enumerate(pairs) if a != b),
        min(len(one), len(other)),
    )


def _preference(name: str) -> tuple[int, str]:
    lower = name.lower()
    ranks = (i for i, kind in enumerate(_BEST_TYPES) if re.search(rf"(^|[-._]){kind}$", lower))
    return next(ranks, len(_BEST_TYPES)), name
