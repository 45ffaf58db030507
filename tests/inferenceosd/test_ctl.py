"""inferenceosd.ctl: commands against a real admin server on a real Unix socket."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner, Result

from inferenceosd import __version__
from inferenceosd.commands import report
from inferenceosd.commands.admin_client import ANSWER_S, Door, fail
from inferenceosd.ctl import main
from planners.model import ModelId
from planners.profile_json import decode_profile
from proxy.admin.orders import UnloadReport
from proxy.admin.records import EventsReport
from supervisor.leases.lease import ModelUnavailable
from tests.fakes.admin_service import (
    EVENTS,
    MODELS,
    PROFILE,
    OneModelService,
    admin_socket,
)

NOT_FOUND = "not found; inferenceosctl models lists what is offered"
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


def test_a_plan_is_asked_for_with_its_numbers(served: Path, service: OneModelService) -> None:
    result = ctl(served, "plan", "qwen", "--context", "4096", "--parallel", "2")

    assert result.exit_code == 0
    assert result.output.startswith("qwen: vulkan, context 4096 × 2")
    assert service.asked == [("plan", "qwen", 4096, 2, None)]


def test_several_models_are_planned_beside_each_other(
    served: Path, service: OneModelService
) -> None:
    result = ctl(served, "plan", "qwen", "qwen", "--context", "4096")

    assert result.exit_code == 0
    assert result.output.count("qwen: vulkan, context 4096 × 2") == 2
    assert result.output.rpartition("together:")[2].count("NVIDIA GeForce RTX 4090") == 1
    assert service.asked[0] == ("plans", ("qwen", "qwen"), 4096, None, None)


def test_one_of_several_that_does_not_fit_ends_with_status_1(
    served: Path, service: OneModelService
) -> None:
    service.fits = False

    result = ctl(served, "plan", "qwen", "qwen")

    assert result.exit_code == 1
    assert "qwen does not fit" in result.output


def test_files_and_names_are_not_planned_in_one_go(served: Path) -> None:
    result = ctl(served, "plan", "qwen", "./qwen.gguf")

    assert result.exit_code == 1
    assert "name models or files, not both" in result.stderr


def test_a_plan_that_does_not_fit_is_shown_with_status_1(
    served: Path, service: OneModelService
) -> None:
    service.fits = False

    result = ctl(served, "plan", "qwen")

    assert result.exit_code == 1
    assert "qwen does not fit" in result.stdout


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


def test_events_are_narrowed_to_a_model_and_a_span(served: Path, service: OneModelService) -> None:
    ctl(served, "events", "--model", "qwen", "--since", "1h30m", "--limit", "1")

    assert service.asked == [("events", "qwen", 5400.0, 1)]


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


PROFILES = Path(__file__).parents[1] / "fixtures" / "hardware" / "profiles"


def test_a_plan_for_another_machine_goes_to_the_daemon_with_the_machine(
    served: Path, service: OneModelService
) -> None:
    spark = PROFILES / "dgx-spark.json"

    result = ctl(served, "plan", "qwen", "--hardware", str(spark))

    assert result.exit_code == 0
    assert "planned for a profile, synthetic: DGX Spark" in result.output
    assert service.asked == [
        ("plan", "qwen", None, None, decode_profile(spark.read_text()).hardware)
    ]


@pytest.mark.parametrize("text", [b"{}", b"\xff\xfe", b"[" * 300_000])
def test_a_file_that_is_no_recorded_machine_is_one_sentence(
    served: Path, tmp_path: Path, text: bytes
) -> None:
    wrong = tmp_path / "machine.json"
    wrong.write_bytes(text)

    result = ctl(served, "plan", "qwen", "--hardware", str(wrong))

    assert result.exit_code == 1
    assert result.stderr.startswith(f"inferenceosctl: {wrong}: ")
    assert result.stderr.count("\n") == 1


def test_the_daemons_machine_is_shown_printed_and_recorded(served: Path, tmp_path: Path) -> None:
    shown = ctl(served, "profile")
    printed = ctl(served, "profile", "--json", "--record", str(tmp_path / "machine.json"))

    assert shown.output.startswith("recorded by a test\n\nhost: AMD Ryzen 9 7950X, 8 cores")
    assert printed.output == PROFILE
    assert (tmp_path / "machine.json").read_text() == PROFILE


@pytest.mark.parametrize("command", ["profile", "doctor"])
def test_a_machine_that_another_version_recorded_is_refused_in_a_sentence(
    served: Path, service: OneModelService, command: str
) -> None:
    service.machine = PROFILE.replace('"version": 1', '"version": 2')

    result = ctl(served, command)

    assert result.exit_code == 1
    assert result.stderr == (
        "inferenceosctl: no hardware profile: version must be 1; another inferenceosd wrote it\n"
    )


def test_the_doctor_looks_by_the_daemons_eyes_where_one_runs(served: Path) -> None:
    result = ctl(served, "doctor", "--json")

    found = {check["name"]: check for check in json.loads(result.output)["checks"]}
    assert found["port"]["sentence"] == "the daemon listens on 127.0.0.1:11434"
    assert found["models"]["verdict"] == "fail"
    assert "/models/lfs.gguf" in found["models"]["sentence"]
    assert result.exit_code == 1


@contextmanager
def program(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The installed program, asking the daemon on `path`; it has ended with the block."""
    with subprocess.Popen(
        [PROGRAM, "--socket", str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def line_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline()


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


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "say what is to change"),
        (("--layers", "99"), 1, "qwen was not moved: the other plan does not fit"),
        (("--tensor-split", "3;1"), 2, "is no split such as 3,1"),
        (("--tensor-split", "0,0"), 2, "is no split such as 3,1"),
        (("--layers", "-1"), 2, "-1 is not in the range"),
    ],
)
def test_a_move_that_cannot_be_is_said(
    served: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = ctl(served, "migrate", "qwen", *arguments)

    assert result.exit_code == status
    assert said in result.output


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "say how much"),
        (("1GiB", "--back"), 2, "say how much"),
        (("much",), 2, "is no size such as 6GiB"),
        (("1GiB", "--device", "nowhere"), 1, "there is no device nowhere"),
    ],
)
def test_a_yield_that_cannot_be_is_said(
    served: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    result = ctl(served, "yield", *arguments)

    assert result.exit_code == status
    assert said in result.output
