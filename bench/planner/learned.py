"""What a loader wants, learned from the engine's own complaints: models of any architecture.

A file that lacks a key or a tensor, or has one of another shape, is refused with a sentence that
says which. So a draft is offered, mended by what was said, and offered again until its buffers are
reserved. Nothing of an architecture need be known but its oddest keys.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bench.planner.drafts import Draft, Shape
from bench.planner.engine import READY
from tests.fakes.gguf_writer import Value

MOST_OFFERS = 300  # the most that one took are 105
_MISSING = re.compile(r"tensor '([^']+)'(?: not found|$)")
_SHAPE = re.compile(r"tensor '([^']+)' has wrong shape; expected +([\d, ]+?), got")
_KEY = re.compile(r"key not found in model: (\S+)")
_LENGTH = re.compile(r"key (\S+) has wrong array length; expected (\d+), got")
_COUNT = re.compile(r"wrong number of tensors; expected (\d+), got (\d+)")
_END = re.compile(r"GGML_ASSERT|GGML_ABORT|fatal error|error loading model|failed to initialize")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")

Offer = Callable[[Draft], Sequence[str]]
"""Has the engine load a draft; its log until it failed, or until its buffers are reserved."""


class NotLearned(Exception):
    """No draft of this architecture was accepted; the message is the engine's last word."""


class Hunch(Struct, frozen=True):
    """A draft and what is only assumed of it."""

    draft: Draft
    guessed: frozenset[str] = frozenset()
    """Tensors that no complaint asked for: an earlier block has them."""
    may_guess: bool = True
    usual: Mapping[str, Shape] = field(default_factory=dict)
    """Shapes by names within a block, as learned so far."""


def learned(draft: Draft, offer: Offer, *, defaults: Mapping[str, Value]) -> Draft:
    """A draft that the engine loads. Raises NotLearned."""
    hunch = Hunch(draft)
    for _ in range(MOST_OFFERS):
        heard = offer(hunch.draft)
        if any(READY in line for line in heard):
            return hunch.draft
        better = mended(hunch, heard, defaults=defaults)
        if better is None or better == hunch:
            raise NotLearned(last_word(heard))
        hunch = better
    raise NotLearned(f"no end after {MOST_OFFERS} offers")


def mended(hunch: Hunch, heard: Iterable[str], *, defaults: Mapping[str, Value]) -> Hunch | None:
    """The draft with the first complaint heeded; None where there is none that can be."""
    for line in heard:
        if (found := _SHAPE.search(line)) is not None:
            return _reshaped(hunch, found[1], _shape(found[2]))
        if (found := _MISSING.search(line)) is not None:
            return _with_tensor(hunch, found[1])
        if (found := _LENGTH.search(line)) is not None:
            return _stretched(hunch, found[1], int(found[2]))
        if (found := _KEY.search(line)) is not None:
            return _with_key(hunch, found[1], defaults)
        if _COUNT.search(line) is not None:
            return _without_guesses(hunch)
    return None


def is_told(heard: Iterable[str]) -> bool:
    """Whether the engine said how it went."""
    return any(READY in line or _END.search(line) for line in heard)


def last_word(heard: Sequence[str]) -> str:
    """The line that says why it ended."""
    told = (line for line in heard if _END.search(line))
    return next(told, heard[-1] if heard else "it ended without a word")[:300]


def _shape(told: str) -> Shape:
    sizes = [int(size) for size in told.replace(" ", "").split(",") if size]
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)


def _with_tensor(hunch: Hunch, name: str) -> Hunch:
    """The tensor added; in later blocks, too, as most blocks are alike."""
    draft, match = hunch.draft, _BLOCK.fullmatch(name)
    part = name if match is None else match[2]
    shape = hunch.usual.get(part, (1,))
    added = {name: shape}
    if match is not None and hunch.may_guess:
        later = range(int(match[1]) + 1, draft.n_layer)
        added |= {f"blk.{i}.{part}": shape for i in later}
    shapes = {**added, **draft.shapes}
    guessed = hunch.guessed | (added.keys() - {name} - draft.shapes.keys())
    return replace(hunch, draft=replace(draft, shapes=shapes), guessed=guessed)


def _reshaped(hunch: Hunch, name: str, shape: Shape) -> Hunch:
    draft, match = hunch.draft, _BLOCK.fullmatch(name)
    part = name if match is None else match[2]
    first = 0 if match is None else int(match[1])
    alike = {name, *(f"blk.{i}.{part}" for i in range(first, draft.n_layer))}
    shapes = {n: shape if n in alike else s for n, s in draft.shapes.items()}
    return replace(hunch, draft=replace(draft, shapes=shapes), usual={**hunch.usual, part: shape})


def _with_key(hunch: Hunch, key: str, defaults: Mapping[str, Value]) -> Hunch | None:
    draft = hunch.draft
    name = key.removeprefix(f"{draft.architecture}.")
    if name in draft.numbers or name not in defaults:
        return None
    return replace(hunch, draft=replace(draft, numbers={**draft.numbers, name: defaults[name]}))


def _stretched(hunch: Hunch, key: str, length: int) -> Hunch | None:
    draft = hunch.draft
    name = key.removeprefix(f"{draft.architecture}.")
    value = draft.numbers.get(name)
    if not isinstance(value, list | tuple) or not value:
        return None
    stretched = (list(value) * length)[:length]
    return replace(hunch, draft=replace(draft, numbers={**draft.numbers, name: stretched}))


def _without_guesses(hunch: Hunch) -> Hunch | None:
    """Some block lacks what an earlier one has: from here on, each is asked for by name."""
    if not hunch.may_guess:
        return None
    shapes = {n: s for n, s in hunch.draft.shapes.items() if n not in hunch.guessed}
    draft = replace(hunch.draft, shapes=shapes)
    return Hunch(draft, may_guess=False, usual=hunch.usual)
