import pytest

from proxy.child.timings import usage_in

TOLD = b'data: {"timings":{"prompt_n":3,"predicted_n":%d}}\n\n'


@pytest.mark.parametrize(
    ("tail", "n_decoded"),
    [
        (TOLD % 7 + b"data: [DONE]\n\n", 7),
        (TOLD % 1 + TOLD % 7 + b'data: {"choices":[]}\n\n', 7),
        (b'ut":1}\n\n' + TOLD % 7, 7),
        ((TOLD % 7).rstrip(), 7),
        (TOLD % 7 + b': "timings":\n\n', 7),
        (b'{"timings":{"predicted_n":7}}\n\ndata: [DONE]\n\n', None),
        (b"data: {}\n\n", None),
        (b"", None),
    ],
    ids=[
        "the last but one", "of several the last", "behind a cut event", "without its end",
        "behind it a comment", "its head is cut off", "none", "nothing",
    ],
)  # fmt: skip
def test_what_a_streams_end_says_it_took(tail: bytes, n_decoded: int | None) -> None:
    usage = usage_in(tail)

    assert (usage.decode_tokens if usage else None) == n_decoded
