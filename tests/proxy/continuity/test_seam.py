import pytest

from proxy.continuity.seam import MOST_UNHEARD, finding, one_token
from proxy.continuity.tokens import Piece

PROMPT = (1, 2)
LINE, BOTH, FOX, BYTE = 198, 1116, 7, 9
TEXTS = {LINE: "\n", BOTH: "\n\n", FOX: "fox", BYTE: "\ufffd"}


def found(slot: tuple[int, ...], text: str) -> tuple[int, ...] | str | None:
    """What is found in a slot, by a vocabulary of these few tokens."""
    steps = finding(slot, n_prompt=len(PROMPT), text=text)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send("".join(TEXTS[token] for token in wanted))
    except StopIteration as done:
        whole: tuple[int, ...] | str | None = done.value
        return whole


@pytest.mark.parametrize(
    ("written", "text", "ids"),
    [
        ((LINE, LINE), "\n\n", (LINE, LINE)),
        ((BOTH,), "\n\n", (BOTH,)),
        ((FOX, LINE, FOX), "fox\n", (FOX, LINE)),
        ((FOX, BYTE, BYTE), "fox", (FOX,)),
        ((FOX, FOX), "", ()),
    ],
    ids=["two tokens", "one token", "more than was told", "half a character more", "nothing told"],
)
def test_the_slots_own_tokens_make_the_text(
    written: tuple[int, ...], text: str, ids: tuple[int, ...]
) -> None:
    assert found((*PROMPT, *written), text) == (*PROMPT, *ids)


def test_the_end_that_a_slot_lacks_is_told() -> None:
    assert found((*PROMPT, FOX, LINE), "fox\n\n") == "\n"
    assert found(PROMPT, "fox") == "fox"


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        ((*PROMPT, FOX, FOX), "fox\n"),
        ((*PROMPT, FOX, BYTE), "foxes"),
        ((*PROMPT, *(FOX,) * (MOST_UNHEARD + 2)), "fox"),
        (PROMPT[:1], "fox"),
    ],
    ids=["another text", "a character that was whole", "too much more", "not even the prompt"],
)
def test_a_slot_of_something_else_tells_nothing(slot: tuple[int, ...], text: str) -> None:
    assert found(slot, text) is None


@pytest.mark.parametrize(
    ("pieces", "token"),
    [
        ([Piece("\n", LINE)], LINE),
        ([Piece([10], LINE)], LINE),
        ([Piece(" \n", 5)], None),
        ([Piece("", 5), Piece("\n", LINE)], None),
        ([], None),
    ],
    ids=["its text", "its bytes", "with a space before it", "two", "none"],
)
def test_a_text_is_a_token_where_the_token_is_that_text(
    pieces: list[Piece], token: int | None
) -> None:
    assert one_token(pieces, "\n") == token
