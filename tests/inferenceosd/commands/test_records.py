"""inferenceosd.commands.records: read and followed, from an admin server on a real socket."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.admin_service import OneModelService
from tests.fakes.ctl_program import ctl, line_of, program


def test_events_are_narrowed_to_a_model_and_a_span(served: Path, service: OneModelService) -> None:
    ctl(served, "events", "--model", "qwen", "--since", "1h30m", "--limit", "1")

    assert service.asked == [("events", "qwen", 5400.0, 1)]


def test_events_are_followed_until_the_daemon_ends(served: Path, service: OneModelService) -> None:
    with program(served, "events", "--follow") as running:
        first, second = line_of(running), line_of(running)
        service.is_over.set()
        rest, said = running.communicate(timeout=20)

    assert "instance.loading" in first
    assert "instance.ready" in second
    assert (running.returncode, rest) == (0, "")
    assert said.splitlines() == [
        "inferenceosctl: 7 lines are missing: they came too fast",
        "inferenceosctl: the daemon stopped",
    ]


def test_followed_events_are_one_json_value_a_line(served: Path) -> None:
    with program(served, "events", "-f", "--json") as running:
        event = json.loads(line_of(running))

    assert (event["kind"], event["model"]) == ("instance.loading", "qwen")


def test_a_log_is_followed_from_its_last_lines(served: Path) -> None:
    with program(served, "logs", "qwen", "-f", "-n", "2") as running:
        assert (line_of(running), line_of(running)) == ("two\n", "three\n")


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Programs started meanwhile end by SIGINT, though a shell started us in its background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("command", [("events", "-f"), ("logs", "qwen", "-f")], ids=" ".join)
def test_ctrl_c_ends_following_quietly(served: Path, command: tuple[str, ...]) -> None:
    with program(served, *command) as running:
        line_of(running)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)

    assert running.returncode == 130
    assert "Traceback" not in said
    assert "Aborted" not in said


@pytest.mark.parametrize("command", [("events", "-f"), ("logs", "qwen", "-f")], ids=" ".join)
def test_a_reader_who_leaves_ends_following_quietly(served: Path, command: tuple[str, ...]) -> None:
    with program(served, *command) as running:
        line_of(running)
        assert running.stdout is not None
        running.stdout.close()
        running.wait(timeout=20)
        assert running.stderr is not None
        said = running.stderr.read()

    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("qwen",), ("forget", "qwen", None)),
        (("--device", "host"), ("forget", None, "host")),
        (("--all",), ("forget", None, None)),
    ],
)
def test_forget_says_how_much_went(
    served: Path, service: OneModelService, arguments: tuple[str, ...], asked: object
) -> None:
    result = ctl(served, "forget", *arguments)

    assert result.output.endswith(": 3 launches, 17 requests\n")
    assert service.asked == [asked]


@pytest.mark.parametrize("arguments", [(), ("qwen", "--all"), ("--device", "host", "--all")])
def test_forget_wants_to_know_what(served: Path, arguments: tuple[str, ...]) -> None:
    result = ctl(served, "forget", *arguments)

    assert result.exit_code == 2
    assert "say what to forget" in result.output
