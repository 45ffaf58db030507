import pytest

from proxy.anthropic.stops import StopSequences


@pytest.mark.parametrize(
    ("sequences", "text", "told", "hit"),
    [
        pytest.param(["END"], "one END two", "one ", "END", id="in the middle"),
        pytest.param(["END"], "one EN two", "one EN two", None, id="only a beginning"),
        pytest.param(["END"], "one EN", "one EN", None, id="a beginning at the end"),
        pytest.param(["two", "one"], "a one b two", "a ", "one", id="the first in the text"),
        pytest.param(["bcd", "c"], "abcd", "ab", "c", id="the first that is whole"),
        pytest.param(["c", "bc"], "abcd", "a", "bc", id="the longer of two that end together"),
        pytest.param(["aab"], "aaab", "a", "aab", id="a beginning within a beginning"),
        pytest.param([""], "one", "one", None, id="empty"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_text_is_told_up_to_its_first_stop_sequence_however_it_is_cut(
    sequences: list[str], text: str, told: str, hit: str | None, size: int
) -> None:
    stops = StopSequences(sequences)

    heard = ""
    for at in range(0, len(text), size):
        if stops.hit is None:
            heard += stops.take(text[at : at + size])

    assert (heard + stops.rest(), stops.hit) == (told, hit)
