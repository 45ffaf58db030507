"""inferenceosd.commands.creation: a Modelfile, the files it names, and what is asked of it."""

from pathlib import Path

import msgspec
import pytest

from inferenceosd.commands.creation import BadSource, read_order, request


def written(folder: Path, text: str) -> str:
    path = folder / "Modelfile"
    path.write_text(text)
    return str(path)


def test_a_file_is_looked_for_beside_the_modelfile_and_a_name_is_a_model(tmp_path: Path) -> None:
    for name in ("a.gguf", "mmproj.gguf", "lora.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "tiny").mkdir()

    files = read_order(
        written(tmp_path, f"FROM a.gguf\nFROM {tmp_path}/mmproj.gguf\nADAPTER ./lora.gguf")
    )
    model = read_order(written(tmp_path, "FROM tiny"))

    assert (files.base, files.files) == (None, (tmp_path / "a.gguf", tmp_path / "mmproj.gguf"))
    assert files.adapters == (tmp_path / "lora.gguf",)
    assert (model.base, model.files) == ("tiny", ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FROM ./none.gguf", "none.gguf is not there"),
        ("FROM none.GGUF", "none.GGUF is not there"),
        ("FROM ./sub", "sub is a folder; name the GGUF file in it"),
        ("FROM tiny\nFROM other", "several FROM name one GGUF file each, never a model"),
        ("FROM tiny\nADAPTER ./none.gguf", "none.gguf, an ADAPTER, is no file"),
        ("FROM tiny\nPARAMETER odd 1", "Modelfile: line 2: unknown parameter 'odd'"),
        ("FROM \ud800", "is no UTF-8"),
    ],
)
def test_what_cannot_be_made_is_said_with_the_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "sub").mkdir()
    path = tmp_path / "Modelfile"
    path.write_bytes(text.encode(errors="surrogatepass"))

    with pytest.raises(BadSource, match=says):
        read_order(str(path))


def test_a_modelfile_that_is_not_there_or_endless_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="Modelfile cannot be read: No such file"):
        read_order(str(tmp_path / "Modelfile"))
    with pytest.raises(BadSource, match="/dev/zero is longer than 4194304 bytes"):
        read_order("/dev/zero")


def test_what_the_modelfile_leaves_out_is_left_out_of_the_request(tmp_path: Path) -> None:
    plain = read_order(written(tmp_path, "FROM tiny"))
    full = read_order(
        written(
            tmp_path,
            "FROM tiny\nPARAMETER stop x\nPARAMETER use_mmap false\nSYSTEM s\nLICENSE l\n"
            "MESSAGE user hi\nTEMPLATE t",
        )
    )

    assert request("mine", plain, files={}, adapters={}) == {"model": "mine", "from": "tiny"}
    asked = msgspec.json.encode(request("mine", full, files={}, adapters={"0/a": "sha256:00"}))
    assert msgspec.json.decode(asked) == {
        "model": "mine",
        "from": "tiny",
        "adapters": {"0/a": "sha256:00"},
        "parameters": {"stop": ["x"], "use_mmap": False},
        "messages": [{"role": "user", "content": "hi"}],
        "license": ["l"],
        "system": "s",
        "template": "t",
    }
