"""`inferenceosctl pull`, `rm`, `cp`, `list` and `show`, against a real admin server."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inferenceosd.commands.shelf_text import list_text
from inferenceosd.ctl import main
from proxy.admin.models import ModelsReport
from tests.fakes.admin_service import STARTED_AT, OneModelService, admin_socket

PROGRAM = Path(sys.executable).with_name("inferenceosctl")


@pytest.fixture
def service() -> OneModelService:
    return OneModelService()


@pytest.fixture
def served(service: OneModelService) -> Iterator[Path]:
    with admin_socket(service) as path:
        yield path


def ctl(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["--socket", str(path), *arguments])


def test_pull_prints_each_step_once_where_no_terminal_draws_it(
    service: OneModelService, served: Path
) -> None:
    done = ctl(served, "pull", "tiny:1")

    assert (done.exit_code, done.output.splitlines()) == (
        0, ["pulling manifest", "pulling 0123456789ab", "success"],
    )  # fmt: skip
    assert service.asked == [("pull", "tiny:1", False)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none", "inferenceosctl: pull model manifest: file does not exist"),
        ("taken", "/models/taken.gguf, which inferenceosd only reads"),
        ("a b", "invalid model name"),
    ],
)
def test_a_pull_that_fails_says_why_with_exit_status_1(served: Path, name: str, says: str) -> None:
    done = ctl(served, "pull", name)

    assert done.exit_code == 1
    assert says in done.output
    assert "success" not in done.output


def test_on_a_terminal_a_pull_is_drawn_as_a_bar(served: Path) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [PROGRAM, "--socket", served, "pull", "tiny"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(theirs)
    drawn = b""
    try:
        while chunk := os.read(ours, 65536):
            drawn += chunk
    except OSError:  # Linux' way to say that the other end is closed
        pass
    out, _ = done.communicate(timeout=30)
    os.close(ours)

    assert (done.returncode, out) == (0, b"success\n")
    assert b"pulling 0123456789ab" in drawn
    assert b"1.0/1.0 kB" in drawn


def test_cp_and_rm_name_what_is_done(service: OneModelService, served: Path) -> None:
    copied, removed = ctl(served, "cp", "qwen", "mine"), ctl(served, "rm", "mine")

    assert (copied.exit_code, copied.output) == (0, "mine:latest is there\n")
    assert (removed.exit_code, removed.output) == (0, "mine is deleted\n")
    assert service.asked == [("copy", "qwen", "mine:latest"), ("delete", "mine")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rm", "qwen"), "/models/qwen.gguf, which inferenceosd only reads"),
        (("rm", "none"), "model 'none' not found"),
        (("cp", "none", "x"), "model 'none' not found"),
        (("cp", "qwen", "../x"), "invalid model name"),
        (("show", "none"), "not found"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_status_1(
    served: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = ctl(served, *arguments)

    assert done.exit_code == 1
    assert says in done.output


def test_list_shows_what_ollama_shows(served: Path) -> None:
    head, row = ctl(served, "list").output.splitlines()

    assert head.split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert row.split()[:4] == ["qwen", "0123456789ab", "4.4", "GiB"]


def test_a_list_tells_how_long_ago_a_model_came(served: Path) -> None:
    report = json.loads(ctl(served, "list", "--json").output)["models"][0]

    assert report["modified_at"] == STARTED_AT
    assert list_text(ModelsReport((), (), ()), now=0) == (
        "no models; inferenceosctl pull NAME fetches one"
    )


def test_show_tells_what_a_model_is_and_how_it_is_asked(served: Path) -> None:
    text = ctl(served, "show", "qwen").output
    modelfile = ctl(served, "show", "qwen", "--modelfile").output
    whole = json.loads(ctl(served, "show", "qwen", "--json").output)

    assert "quantization      Q4_1" in text
    assert "SYSTEM\nBe brief." in text
    assert "LICENSE\nMIT\n" in text
    assert "more" not in text
    assert 'SYSTEM """Be brief."""' in modelfile
    assert whole["path"] == "/models/qwen.gguf"
