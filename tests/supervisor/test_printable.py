import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Grüße, 世界", "Grüße, 世界"),
        ("Mod\udce8les", "Mod\\udce8les"),
        ("two\nlines", "two\\nlines"),
        ("", ""),
    ],
)
def test_only_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(categories=["L", "C", "Z", "P"])))
def test_whatever_the_text_it_can_be_encoded(text: str) -> None:
    json.dumps(printable(text), ensure_ascii=False).encode()
