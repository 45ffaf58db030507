import pytest

from proxy.native.form import BadForm, field

TYPE = b'multipart/form-data; boundary="b1"'


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b1\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value


def form(*parts: bytes) -> bytes:
    return b"\r\n".join((*parts, b"--b1--\r\n"))


def test_a_field_is_found_beside_a_file() -> None:
    audio = part("file", b"\r\n--b\r\n\r\n\x00", '; filename="name=\\"model\\""')

    assert field(form(audio, part("model", b"tiny")), TYPE, b"model") == "tiny"
    assert field(form(part("model", b"tiny"), audio), TYPE, b"model") == "tiny"
    assert field(form(part("model", b"")), TYPE, b"model") == ""


def test_a_form_without_the_field_names_none() -> None:
    assert field(form(part("file", b"x")), TYPE, b"model") is None
    assert field(form(), TYPE, b"model") is None
    assert field(b"", TYPE, b"model") is None


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        pytest.param(form(part("model", b"x")), b"application/json", id="no form"),
        pytest.param(form(part("model", b"x")), b"multipart/form-data", id="no boundary"),
        pytest.param(part("model", b"tiny"), TYPE, id="no end"),
        pytest.param(b"--b1\r\n" + b"x" * 9000, TYPE, id="no head"),
        pytest.param(form(part("model", b"x" * 2000)), TYPE, id="a long value"),
        pytest.param(form(part("model", b"\xff")), TYPE, id="no text"),
        pytest.param(form(*[part("a", b"")] * 65), TYPE, id="many parts"),
    ],
)
def test_what_is_no_decent_form_is_refused(body: bytes, content_type: bytes) -> None:
    with pytest.raises(BadForm):
        field(body, content_type, b"model")
