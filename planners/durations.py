"""Durations as Ollama's clients write them: seconds as numbers, Go durations as text.

"Forever" is `math.inf`, "unload at once" is 0.0.
Grammar: Go's time.ParseDuration, plus bare "0", "-1" and numbers.
"""

import math
import re

from planners.errors import PlanError

FOREVER_S = math.inf

_UNIT_S = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip
_LONGEST_S = (2**63 - 1) / 1e9  # Go counts nanoseconds in int64: 292 years
_GO_TYPES: dict[type, str] = {list: "[]interface {}", dict: "map[string]interface {}"}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)([a-zµμ]*)", re.ASCII)
_BARE_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)


class BadDuration(PlanError):
    """A value that is no duration; `why` in Ollama's words."""

    def __init__(self, value: object, why: str, hint: str = "") -> None:
        self.value, self.why = value, why
        super().__init__(why + hint)


def parse_duration(value: object) -> float:
    """Seconds meant by a number or a Go duration such as "5m" or "1h30m"; negative means forever.

    Raises BadDuration, in Ollama's words where it has words of its own.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        kind = _GO_TYPES.get(type(value), type(value).__name__)
        raise BadDuration(value, f"Unsupported type: '{kind}'")
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, float) and math.isnan(value):
        raise BadDuration(value, 'time: invalid duration "NaN"')
    return FOREVER_S if value < 0 or value > _LONGEST_S else float(value)


def wished_duration(value: object) -> float | None:
    """The same of what a request may leave out: None where it does. Raises BadDuration."""
    return None if value is None else parse_duration(value)


def _parse_text(text: str) -> float:
    if len(text) > 64:
        raise BadDuration(text, f'time: invalid duration "{text[:64]}…"')
    unsigned = text[1:] if text[:1] in "+-" else text
    if text in ("0", "-1", "+0", "-0"):
        return FOREVER_S if text == "-1" else 0.0
    if _BARE_NUMBER.fullmatch(unsigned):
        why = f'time: missing unit in duration "{text}"'
        raise BadDuration(text, why, f'; did you mean "{text}s"?')
    seconds, end = 0.0, 0
    for part in _PART.finditer(unsigned):
        if part.start() != end:
            break
        if part[2] not in _UNIT_S:
            why = f'unknown unit "{part[2]}"' if part[2] else "missing unit"
            raise BadDuration(text, f'time: {why} in duration "{text}"')
        seconds += float(part[1]) * _UNIT_S[part[2]]
        end = part.end()
    if not unsigned or end != len(unsigned) or seconds > _LONGEST_S:
        raise BadDuration(text, f'time: invalid duration "{text}"')
    return FOREVER_S if text.startswith("-") and seconds > 0 else seconds


def format_duration(seconds: float) -> str:
    """`seconds` as a short Go duration: "5m", "1h30m", "forever"."""
    if seconds == FOREVER_S:
        return "forever"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, rest_s = divmod(rest, 60)
    parts = [f"{n}{unit}" for n, unit in ((hours, "h"), (minutes, "m"), (rest_s, "s")) if n]
    return "".join(parts) or "0s"
