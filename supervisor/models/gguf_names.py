"""What names of GGUF files say: which files are the parts of one model. Pure."""

import re

from msgspec import Struct

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<base>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})", re.DOTALL)


class Part(Struct, frozen=True):
    """What a part's name says of it."""

    base: str
    number: int
    count: int


def stem_of(path: str) -> str:
    """The path without .gguf, where it ends so."""
    return path[: -len(SUFFIX)] if path.lower().endswith(SUFFIX) else path


def part_of(stem: str) -> Part | None:
    """None for a whole model, and for numbers that no split gives, such as 0 of 0 or 3 of 2."""
    match = _PART.fullmatch(stem)
    if match is None:
        return None
    part = Part(match["base"], int(match["number"]), int(match["count"]))
    return part if 1 <= part.number <= part.count else None


def part_name(base: str, number: int, count: int) -> str:
    """The name by which llama.cpp looks for a part (llama.cpp, llama_split_path)."""
    return f"{base}-{number:05}-of-{count:05}{SUFFIX}"
