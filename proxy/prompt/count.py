"""The prompts that a completion's body holds: the child reads each of them into one slot."""

import re
from typing import Any

import msgspec

from proxy.child.chunks import ABSENT
from proxy.errors import BadRequest

MAX_PROMPTS = 256
"""In one request: they take the one slot of its lease one after another."""
MAX_INPUTS = 8192
"""To embed or to rank in one request, four times what OpenAI takes: each is a task of its child's.
"""

_MANY = {"prompt": "prompts", "input": "inputs", "documents": "documents"}
_TOKEN_IDS = re.compile(rb"\[\s*[-0-9]")
_OPENING = ord("[")
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


def n_prompts_in(told: msgspec.Raw, *, most: int = MAX_PROMPTS, param: str = "prompt") -> int:
    """How many prompts the child reads in `told`: in an array with a token id in it, one.

    Raises BadRequest for more than `most`.
    """
    view = memoryview(told)
    if not view or view[0] != _OPENING or _TOKEN_IDS.match(told):
        return 1
    items = _ITEMS.decode(told)
    is_mixed = any(memoryview(item)[0] in b"-0123456789" for item in items)
    n_prompts = 1 if is_mixed else max(1, len(items))
    check_count(n_prompts, most=most, param=param)
    return n_prompts


def prompts_in(
    told: msgspec.Raw, *, most: int = MAX_PROMPTS, param: str = "prompt"
) -> list[object]:
    """Each prompt that the child reads in `told`, decoded; one empty text where nothing is told.

    Raises BadRequest as `n_prompts_in`.
    """
    value: Any = msgspec.json.decode(told) if told != ABSENT else ""
    return value if n_prompts_in(told, most=most, param=param) > 1 else [value]


def check_count(n_told: int, *, most: int = MAX_INPUTS, param: str = "input") -> None:
    """Raises BadRequest for more than `most`."""
    if n_told > most:
        raise BadRequest(
            f"{param} must hold at most {most} {_MANY[param]}, not {n_told}; send fewer at a time",
            param=param,
        )
