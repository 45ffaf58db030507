"""What the names of GGUF files say of their quantisation, and which of two is the better. Pure."""

import re
from collections.abc import Iterable

_LABEL = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4))"
    r"(?=$|[-._])",
    re.IGNORECASE | re.ASCII,
)
_SAME = {"FP16": "F16", "FP32": "F32"}

QUALITY = (
    ("F32", "BF16", "F16", "Q8_K_XL", "Q8_0"),
    ("Q6_K_XL", "Q6_K_L", "Q6_K"),
    ("Q5_K_XL", "Q5_K_L", "Q5_K_M"),
    ("Q5_K_S", "Q5_1", "Q5_0"),
    ("MXFP4", "MXFP4_MOE", "NVFP4", "Q4_K_XL", "Q4_K_L", "Q4_K_M"),
    ("Q4_K_S", "Q4_1", "IQ4_NL"),
    ("IQ4_XS", "Q4_0"),
    ("Q3_K_XL", "Q3_K_L"),
    ("Q3_K_M", "IQ3_M", "IQ3_S"),
    ("Q3_K_S", "IQ3_XS"),
    ("IQ3_XXS", "Q2_K_XL", "Q2_K_L"),
    ("Q2_K", "IQ2_M"),
    ("Q2_K_S", "IQ2_S"),
    ("IQ2_XS", "IQ2_XXS", "TQ2_0"),
    ("IQ1_M", "IQ1_S", "TQ1_0"),
)
"""Best first, those of one row alike: no measure of a model tells Q8_0 from F16.

(llama.cpp tools/quantize/README.md: loss of perplexity by type.)
"""
_RANKS = {label: rank for rank, row in enumerate(QUALITY) for label in row}
_USUAL = ("Q4_K_M", "Q4_K_XL", "MXFP4", "MXFP4_MOE", "Q4_K_S", "Q4_0", "IQ4_XS", "Q5_K_M", "Q8_0")
"""What is taken where nobody names one; as on Hugging Face, Q4_K_M first."""


def quantisation_of(stem: str) -> str:
    """The label in a file's name, which is without folder and .gguf: "Q4_K_M"; "" for none."""
    found = _LABEL.findall(stem)
    label = str(found[-1]).upper() if found else ""
    return _SAME.get(label, label)


def quality(label: str) -> int:
    """The rank of a quantisation: 0 is best. What is not known goes below what has its bits."""
    plain = label.upper().removeprefix("UD-")
    if (rank := _RANKS.get(plain)) is not None:
        return rank
    bits = re.search(r"\d", plain)
    alike = [rank for known, rank in _RANKS.items() if bits and bits[0] in known[:3]]
    return max(alike, default=len(QUALITY))


def usual(labels: Iterable[str]) -> str:
    """The one of `labels`, which are not none, that is taken where nobody names one."""
    ranks = {label: rank for rank, label in enumerate(_USUAL)}

    def place(label: str) -> tuple[int, int, str]:
        return (ranks.get(label.removeprefix("UD-"), len(ranks)), quality(label), label)

    return min(labels, key=place)
