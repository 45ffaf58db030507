"""Memory bandwidth by name, from makers' data sheets, for devices whose driver does not tell it.

NVIDIA's cards are not here: NVML tells clock and bus.
"""

import re

_GB_PER_S = 1e9
# Longest name first where one begins another. AMD: amd.com product pages. Intel: ark.intel.com.
# Apple: technical specifications on support.apple.com; the M3 Max and M4 Max have a smaller sibling
# with fewer cores and a narrower bus under the same name: the lower figure is taken.
_SHEETS = tuple(
    (re.compile(pattern, re.IGNORECASE), rate)
    for pattern, rate in (
        (r"rx 7900 xtx", 960), (r"rx 7900 xt\b", 800), (r"rx 7900 gre", 576),
        (r"rx 7800 xt", 624), (r"rx 7700 xt", 432), (r"rx 7600", 288),
        (r"rx 9070", 640), (r"rx 9060", 320),
        (r"rx 6[89]50 xt", 576), (r"rx 6[89]00", 512), (r"rx 6750 xt", 432), (r"rx 6700", 320),
        (r"mi300x", 5300), (r"mi325x", 6000), (r"mi250", 3277), (r"mi210", 1638), (r"mi100", 1229),
        (r"w7900", 864), (r"w7800", 576),
        (r"radeon vii", 1024), (r"mi60|mi50", 1024),
        (r"80[56]0s|ryzen ai max|gfx1151", 256),
        (r"arc\(tm\) a770", 560), (r"arc\(tm\) a750", 512), (r"arc\(tm\) b580", 456),
        (r"arc\(tm\) b570", 380),
        (r"\bgb10\b", 273),
        (r"apple m[123] ultra", 800), (r"apple m4 max", 410), (r"apple m3 max", 300),
        (r"apple m[12] max", 400), (r"apple m4 pro", 273), (r"apple m3 pro", 150),
        (r"apple m[12] pro", 200), (r"apple m4", 120), (r"apple m[23]", 100), (r"apple m1", 68),
    )
)  # fmt: skip


def bandwidth_bytes_per_s(name: str) -> float | None:
    """Peak of the memory that a device or processor of this name reads; None where not listed."""
    return next((rate * _GB_PER_S for sheet, rate in _SHEETS if sheet.search(name)), None)
