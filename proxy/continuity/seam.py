"""Where a restored slot stands beside the text that its caller has, by tokens as they were written.

A text may be read as other tokens than it was written in: two line feeds, one by one, are one token
to who reads them. Pure: token ids out, the texts that they stand for in.
"""

from collections.abc import Generator, Sequence

from proxy.continuity.tokens import Piece

MOST_UNHEARD = 16  # tokens in the slot that nobody got: on their way, or held as a stop's beginning

Ids = tuple[int, ...]
Finding = Generator[Ids, str, Ids | str | None]


def finding(slot: Ids, *, n_prompt: int, text: str) -> Finding:
    """Yields tokens whose text it wants sent in; gives those that make the prompt and `text`.

    Or the end of `text` that the slot lacks: what was drawn last is told before it is computed.
    None where the slot tells something else.
    """
    for end in range(len(slot), max(n_prompt, len(slot) - MOST_UNHEARD) - 1, -1):
        told = yield slot[n_prompt:end]
        if told == text:
            return slot[:end]
        if text.startswith(told):
            return text[len(told) :] if end == len(slot) else None
    return None


def one_token(pieces: Sequence[Piece], text: str) -> int | None:
    """The token that a text is; None where it is several, or not exactly that text."""
    if len(pieces) != 1 or pieces[0].bytes != text.encode():
        return None
    return pieces[0].id
