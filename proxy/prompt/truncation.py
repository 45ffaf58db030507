"""Shortens a prompt whose caller asked for that, by whole messages or by tokens, and counts it.

What is dropped is counted as the child counts: by its template and its tokens.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from proxy.door import Door
from proxy.errors import PromptTooLong
from proxy.prompt.length import rendered, token_ids
from supervisor.leases.lease import Lease

Body = Mapping[str, Any]
"""A request as a child takes it."""


class Shortened(msgspec.Struct, frozen=True):
    """A body to send instead of another, and how many tokens of the other's prompt it lacks."""

    told: Body
    n_dropped: int


async def shortened_chat(
    door: Door, lease: Lease, told: Body, *, n_ctx: int | None = None
) -> Shortened:
    """The chat without its oldest messages, as few as it takes; the system's and the last stay.

    `n_ctx` is what the request asks for, if anything. Raises PromptTooLong where not even the last
    message fits, ChildRefused, UpstreamError.
    """

    async def n_tokens(at: int) -> int:
        text = await rendered(door, lease, msgspec.json.encode(tries[at]))
        return len(await token_ids(door, lease, text))

    most = _most_tokens(lease, n_ctx)
    tries = [told, *_shorter_chats(told)]
    whole = await n_tokens(0)
    if whole <= most:
        return Shortened(told, 0)
    chosen, n_left = await _first_within(most, n_tokens, count=len(tries))
    if n_left > most:
        raise PromptTooLong(model=lease.model_id, n_prompt=n_left, n_ctx=most + 1)
    return Shortened(tries[chosen], whole - n_left)


def _shorter_chats(told: Body) -> list[Body]:
    """What may be sent instead, the longest first. System messages go first, as in Ollama.

    The rest begins with a message of the user, as templates insist, or is the last one alone.
    """
    system = [message for message in told["messages"] if message["role"] == "system"]
    rest = [message for message in told["messages"] if message["role"] != "system"]
    starts = [at for at in range(1, len(rest)) if rest[at]["role"] == "user" or at == len(rest) - 1]
    return [{**told, "messages": [*system, *rest[at:]]} for at in starts]


async def _first_within(
    most: int, n_tokens: Callable[[int], Awaitable[int]], *, count: int
) -> tuple[int, int]:
    """The first of `count`, each shorter than the one before, of at most so many tokens.

    And how many it has; the last where none has so few.
    """
    first, last = 0, count - 1
    while first < last:
        middle = (first + last) // 2
        if await n_tokens(middle) <= most:
            last = middle
        else:
            first = middle + 1
    return first, await n_tokens(first)


async def shortened_text(
    door: Door, lease: Lease, told: Body, *, n_keep: int, n_ctx: int | None = None
) -> Shortened:
    """A completion without the tokens behind its prompt's first `n_keep`, as few as it takes.

    The prompt is a text, or token ids and a text; then the text is the newest message, which stays
    whole. Raises PromptTooLong where that alone does not fit, ChildRefused, UpstreamError.
    """
    prompt = told["prompt"]
    *before, text = [prompt] if isinstance(prompt, str) else prompt
    ids = [*before, *await token_ids(door, lease, text, add_special=not before)]
    most = _most_tokens(lease, n_ctx)
    n_dropped = len(ids) - most
    if n_dropped <= 0:
        return Shortened(told, 0)
    n_loose = len(before) or len(ids)
    start = max(0, min(n_keep, n_loose - n_dropped))
    if n_dropped > n_loose:
        n_left = len(ids) - n_loose
        raise PromptTooLong(model=lease.model_id, n_prompt=n_left, n_ctx=most + 1)
    return Shortened({**told, "prompt": ids[:start] + ids[start + n_dropped :]}, n_dropped)


async def shortened_inputs(
    door: Door, lease: Lease, texts: Sequence[str], *, n_ctx: int | None = None
) -> tuple[list[object], int]:
    """Texts to embed, those that are too long as token ids without their ends; tokens dropped.

    Raises ChildRefused, UpstreamError.
    """
    most = lease.context if n_ctx is None else min(n_ctx, lease.context)
    inputs: list[object] = []
    n_dropped = 0
    for text in texts:
        if len(text.encode()) + _SPECIAL_TOKENS <= most:  # a token is a byte at least
            inputs.append(text)
            continue
        ids = await token_ids(door, lease, text)
        bare = await token_ids(door, lease, text, add_special=False)
        n_over = max(0, len(ids) - most)
        n_dropped += n_over
        inputs.append(_without_end(ids, bare, n_over) if n_over else text)
    return inputs, n_dropped


_SPECIAL_TOKENS = 2  # at most: one that begins, one that ends


def _without_end(ids: tuple[int, ...], bare: tuple[int, ...], n_over: int) -> tuple[int, ...]:
    """`ids` less the last `n_over` of the text's own, `bare`: what ends every text stays."""
    n_before = 1 if len(ids) > len(bare) and ids[: len(bare)] != bare else 0
    end = n_before + len(bare)
    return ids[: end - n_over] + ids[end:]


def _most_tokens(lease: Lease, n_ctx: int | None) -> int:
    """That a prompt may have: less than is loaded, and no more than its request asks for."""
    most = lease.context - 1
    return most if n_ctx is None else min(n_ctx, most)
