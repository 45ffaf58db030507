"""inferenceosd.ctl: commands against a real admin server on a real Unix socket."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from inferenceosd import __version__
from inferenceosd.commands import report
from inferenceosd.commands.admin_client import ANSWER_S, Door, fail
from inferenceosd.ctl import main
from planners.model import ModelId
from proxy.admin.orders import UnloadReport
from proxy.admin.records import EventsReport
from supervisor.leases.lease import ModelUnavailable
from tests.fakes.admin_service import (
    EVENTS,
    MODELS,
    OneModelService,
)
from tests.fakes.ctl_program import PROGRAM, ctl

NOT_FOUND = "not found; inferenceosctl models lists what is offered"


def test_the_installed_program_prints_status_without_colours(served: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "status"],
        env={"PATH": "/usr/bin:/bin", "INFERENCEOSD_ADMIN_SOCKET": str(served)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("inferenceosd 0.1.0, pid 4711, up ")
    assert "Vulkan0:29" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("command", ["status", "models", "events", "plan qwen"])
def test_json_is_what_the_daemon_said(served: Path, command: str) -> None:
    result = ctl(served, *command.split(), "--json")

    assert result.exit_code == 0
    assert isinstance(json.loads(result.output), dict)


def test_models_and_events_are_shown_as_tables(served: Path) -> None:
    assert ctl(served, "models").output == report.models_text(MODELS) + "\n"
    assert ctl(served, "events").output == report.events_text(EventsReport(EVENTS)) + "\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("load qwen", "qwen loaded in 3.5 s\n"),
        ("unload qwen", "qwen unloads as soon as its requests are done\n"),
        (
            "migrate qwen --layers 7",
            "qwen moved in 0.8 s (make-before-break): 7 layers on rpc:127.0.0.1:50052,"
            " context 4096 × 2\n2 streams go on; 3 slots went along, 5.0 MiB\n"
            "other devices round otherwise: replies go on, in words of their own\n",
        ),
        (
            "yield 2GiB --device CUDA0 --for 2h",
            "YIELDED: 2.0 GiB of CUDA0 for 2h: at most 1.0 GiB for models, which take 3.0 GiB\n",
        ),
        (
            "yield 512MiB",
            "YIELDED: 512.0 MiB of host until it is taken back: at most 1.0 GiB for models,"
            " which take 3.0 GiB\n",
        ),
        ("yield --back --device host", "0 B of host is ours again\n"),
        ("retry qwen", "qwen had not failed\n"),
        ("reload", "qwen restarts with context 8192\n"),
        ("logs qwen", "one\ntwo\nthree\n"),
        ("logs qwen --tail 1", "three\n"),
    ],
)
def test_an_order_is_answered_in_a_sentence(served: Path, command: str, said: str) -> None:
    result = ctl(served, *command.split())

    assert (result.exit_code, result.output) == (0, said)


def test_a_failed_model_is_forgiven(served: Path, service: OneModelService) -> None:
    service.unavailable = "died of SIGSEGV"

    result = ctl(served, "retry", "qwen")

    assert (result.exit_code, result.output) == (0, "qwen is tried anew by its next request\n")


def test_a_name_like_one_on_offer_is_told_that_one(served: Path) -> None:
    assert ctl(served, "load", "qwe").stderr == (
        "inferenceosctl: model 'qwe' not found; did you mean 'qwen'?\n"
    )


def test_what_the_daemon_refuses_is_a_sentence_and_status_1(
    served: Path, service: OneModelService
) -> None:
    service.config_mistake = "/etc/config.toml:3: log.level: 'loud' is none of them"

    unknown, wrong = ctl(served, "load", "gpt"), ctl(served, "reload")

    assert (unknown.exit_code, unknown.stderr) == (1, f"inferenceosctl: model 'gpt' {NOT_FOUND}\n")
    assert (wrong.exit_code, wrong.stderr) == (1, f"inferenceosctl: {service.config_mistake}\n")


@pytest.mark.parametrize(
    "command",
    ["load", "plan qwen --context 0", "events --since soon", "events --since -1", "dance"],
)
def test_wrong_usage_is_status_2(served: Path, command: str) -> None:
    assert ctl(served, *command.split()).exit_code == 2


def test_no_daemon_is_one_sentence_that_names_the_socket(tmp_path: Path) -> None:
    missing = tmp_path / "admin.sock"

    result = ctl(missing, "status")

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"no inferenceosd answers on {missing}" in result.stderr


def test_a_socket_that_a_dead_daemon_left_is_no_daemon_either(short_folder: Path) -> None:
    stale = short_folder / "admin.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))

    result = ctl(stale, "status")

    assert result.exit_code == 1
    assert f"no inferenceosd answers on {stale}" in result.stderr


def test_a_wrong_configuration_does_not_keep_one_from_asking(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[servr]")
    environ = {"INFERENCEOSD_CONFIG": str(wrong), "RUNTIME_DIRECTORY": "/nonexistent"}

    result = CliRunner(env=environ).invoke(main, ["status"])

    assert result.exit_code == 1
    assert "no inferenceosd answers on /nonexistent/admin.sock" in result.stderr
    assert f"it may use another, but {wrong}:1: servr: unknown" in result.stderr


def test_the_socket_of_the_configuration_is_asked(served: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[admin]\nsocket = "{served}"')

    result = CliRunner(env={"INFERENCEOSD_CONFIG": str(config)}).invoke(main, ["models"])

    assert result.exit_code == 0


def test_version_is_the_packages() -> None:
    shown = CliRunner().invoke(main, ["--version"], prog_name="inferenceosctl")

    assert shown.output == f"inferenceosctl {__version__}\n"


def test_every_command_has_help_worth_reading() -> None:
    for name, command in main.commands.items():
        assert command.help, name
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_a_name_with_odd_characters_reaches_the_daemon_as_it_is(served: Path) -> None:
    result = ctl(served, "logs", "a/b c&tail=1#ü%")

    assert result.stderr == f"inferenceosctl: model 'a/b c&tail=1#ü%' {NOT_FOUND}\n"


@pytest.fixture
def short_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is short from where we stand: a socket's path has 107 bytes."""
    monkeypatch.chdir(tmp_path)
    return Path(os.curdir)


def run(path: Path, *arguments: str | bytes, stdout: int = subprocess.PIPE) -> tuple[int, str]:
    """The installed program's exit status and what it complains of."""
    done = subprocess.run(
        [PROGRAM, "--socket", path, *arguments],
        stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("load", b"\xff"), "'\\udcff' is no model: it is no UTF-8"),
        (("events", "--model", b"\xff"), "'\\udcff' is no model: it is no UTF-8"),
        (("load", "x" * 100_000), "no model has a name of 100000 bytes; the longest have 2048"),
        (("logs", "x" * 100_000), "no model has a name of 100000 bytes; the longest have 2048"),
        (("logs", "x" * 2048), f"model '{'x' * 2048}' {NOT_FOUND}"),
        (("logs", "ü" * 1024), f"model '{'ü' * 1024}' {NOT_FOUND}"),
        (("load", "a\nb\x1b[31m"), f"model 'a\\nb\\x1b[31m' {NOT_FOUND}"),
    ],
    ids=["bytes", "bytes in an option", "long", "long in an address", "longest", "ü", "control"],
)
def test_any_name_is_answered_in_one_line(
    served: Path, arguments: tuple[str | bytes, ...], said: str
) -> None:
    assert run(served, *arguments) == (1, f"inferenceosctl: {said}\n")


@pytest.mark.parametrize("arguments", [("status",), ("status", "--json"), ("--help",)])
def test_a_full_disk_is_one_line(served: Path, arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        told = run(served, *arguments, stdout=full.fileno())

    assert told == (1, "inferenceosctl: cannot write the answer: No space left on device\n")


def test_what_the_terminal_has_no_letters_for_is_escaped(served: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "iso8859-5"}
    done = subprocess.run(
        [PROGRAM, "--socket", served, "status"], env=environ, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert "4096 \\xd7 2" in done.stdout


def test_numbers_beyond_any_model_are_wrong_usage(served: Path) -> None:
    status, said = run(served, "plan", "qwen", "--context", str(1 << 62))

    assert status == 2
    assert f"{1 << 62} is not in the range 1<=x<=2147483647" in said


@contextmanager
def saying(reply: bytes | None) -> Iterator[str]:
    """A socket whose every caller is sent `reply` and closed; kept waiting where it is None."""
    with TemporaryDirectory(prefix="ctl-") as folder, socket.socket(socket.AF_UNIX) as listener:
        path = str(Path(folder) / "admin.sock")
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            listener.accept()[0].close()  # who only looks whether somebody listens
            with listener.accept()[0] as caller:
                caller.recv(1 << 16)
                if reply is None:
                    over.wait(30)
                else:
                    caller.sendall(reply)

        over = threading.Event()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield path
        finally:
            over.set()
            thread.join(10)


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [
        ("Content-Encoding: gzip\r\n", b"xxxx", "broke off"),
        ("", b"\xff\xfe{}", "does not know"),
        ("", b"[" * 4000, "does not know"),
    ],
    ids=["broken gzip", "no UTF-8", "nothing but brackets"],
)
def test_an_answer_that_is_none_is_one_line(head: str, body: bytes, said: str) -> None:
    start = f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    with saying(start.encode() + body) as path:
        result = CliRunner().invoke(main, ["--socket", path, "status"])

    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert said in result.stderr


def test_a_daemon_that_hangs_is_not_waited_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(None) as path, pytest.raises(SystemExit):
        Door(path).post("/unload", UnloadReport, within_s=0.1)

    assert "gave no answer within 0 s" in capsys.readouterr().err
    assert ANSWER_S <= 10


def test_the_log_of_a_model_that_cannot_run_is_shown_line_by_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = ModelUnavailable(
        model_id=ModelId("a\nb"), reason="it died", retry_after_s=None, log_tail=("x", "y\x1b[31m")
    )

    with pytest.raises(SystemExit):
        fail(str(refused))

    assert capsys.readouterr().err.splitlines() == [
        "inferenceosctl: a\\nb cannot be served: it died",
        "The last lines of its log:",
        "x",
        "y\\x1b[31m",
    ]
