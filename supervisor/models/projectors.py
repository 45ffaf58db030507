"""Which mmproj file belongs to which model of the same folder. Pure: file names in, pairs out.

People name them "mmproj-MODEL-f16.gguf", "MODEL.mmproj-Q8_0.gguf", or just "mmproj-F16.gguf".
"""

import re
from collections.abc import Iterable

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


def projector_for(model: str, *, models: Iterable[str], projectors: Iterable[str]) -> str | None:
    """Which of `projectors` is `model`'s, where `models` share the folder; None where none is."""
    bases = {base_name(name) for name in models}
    own = base_name(model)
    fitting = [name for name in projectors if _fits(base_name(name), own, bases)]
    return min(fitting, key=_preference, default=None)


def _fits(projector: str, own: str, bases: set[str]) -> bool:
    """True where no other model of the folder has a better claim."""
    if len(bases) == 1:
        return True
    if projector in _GENERIC:
        return False
    longest = max(_common(projector, base) for base in bases)
    return longest >= min(len(projector), 4) and _common(projector, own) == longest


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
