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


def test_fit_shows_how_each_file_would_run_and_pulls_the_first(
    service: OneModelService, served: Path
) -> None:
    done = ctl(served, "pull", "--fit", "--context", "4096", "hf.co/org/repo")

    assert done.exit_code == 0
    heading, first, second, reason, *pulled = done.output.splitlines()
    assert heading.split() == ["FILE", "SIZE", "FITS", "CONTEXT", "TOKENS/S"]
    assert first.split()[:3] == ["Q8_0", "8.0", "GiB"]
    assert second.split()[:4] == ["Q4_K_M", "4.0", "GiB", "~part"]
    assert reason.startswith("Q8_0 ")
    assert pulled[-1] == "success"
    assert [asked[:3] for asked in service.asked] == [
        ("fit", "hf.co/org/repo:latest", 4096), ("pull", "hf.co/org/repo:Q8_0", False),
    ]  # fmt: skip


def test_fit_tells_scripts_in_json_and_a_dry_run_pulls_nothing(
    service: OneModelService, served: Path
) -> None:
    done = ctl(served, "pull", "--fit", "--json", "--dry-run", "hf.co/org/repo")

    told = json.loads(done.output)
    assert told["pick"] == "hf.co/org/repo:Q8_0"
    assert [file["tag"] for file in told["files"]] == ["Q8_0", "Q4_K_M"]
    assert [asked[0] for asked in service.asked] == ["fit"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--fit", "hf.co/org/none"], 1, "file does not exist"),
        (["--fit", "hf.co/org/repo:Q4_0"], 1, "name hf.co/org/repo without a tag"),
        (["--context", "5", "hf.co/org/repo"], 2, "go with --fit"),
    ],
)
def test_what_fit_cannot_rank_is_told(
    served: Path, arguments: list[str], status: int, says: str
) -> None:
    done = ctl(served, "pull", *arguments)

    assert done.exit_code == status
    assert says in done.output


def test_where_no_file_fits_nothing_is_pulled(service: OneModelService, served: Path) -> None:
    service.fits = False

    done = ctl(served, "pull", "--fit", "hf.co/org/repo")

    assert done.exit_code == 1
    assert "none fits this machine" in done.output
    assert [asked[0] for asked in service.asked] == ["fit"]


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
        (("rm", "none"), "model 'none' not found; inferenceosctl models lists what is offered"),
        (
            ("cp", "none", "x"),
            "model 'none' not found; inferenceosctl models lists what is offered",
        ),
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
