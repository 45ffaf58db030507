"""`inferenceosctl run`, against the real daemon, engine and model."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripts.started_daemon import StartedDaemon
from tests.fakes.certificates import certificate
from tests.integration.test_create import MODEL, PROGRAM, run
from tests.integration.test_store import registry

BRIEF = "brief"
SOON_S = 60.0
LONG = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "boolean"}, "minItems": 600}},
    "required": ["a"],
}


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Children heed Ctrl-C, though these tests may themselves run behind a shell that does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module", autouse=True)
def brief(daemon: StartedDaemon) -> str:
    """The name of the same model, which says the same again and not much."""
    told = f"FROM {MODEL}\nPARAMETER temperature 0\nPARAMETER num_predict 8\n"
    made = run(daemon, "create", BRIEF, "-f", "-", piped=told)
    assert made.returncode == 0, made.stderr
    return BRIEF


def chats(daemon: StartedDaemon) -> list[Any]:
    """The requests of /api/chat so far that a model answered, in their order."""
    lines = (json.loads(line) for line in daemon.log().splitlines() if line.startswith("{"))
    return [
        line
        for line in lines
        if line["event"] == "request.served" and line["path"] == "/api/chat" and line["instance_id"]
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def prompt_tokens(told: str) -> int:
    """What --verbose told of the last answer: of its whole prompt, cached or not."""
    return int(re.findall(r"prompt eval count: +(\d+) tokens", told)[-1])


@dataclass
class Terminal:
    """A program at a terminal of its own, and somebody who types."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: str = ""
    _raw: bytes = field(default=b"", repr=False)

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """What is shown before `text`, since it was last waited for."""
        deadline_s = time.monotonic() + SOON_S
        while text not in self.shown:
            assert time.monotonic() < deadline_s, f"no {text!r} in {self.shown!r}"
            self._read()
        before, _, self.shown = self.shown.partition(text)
        return before

    def wait(self) -> int:
        deadline_s = time.monotonic() + SOON_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, self.shown
            self._read()
        return self.process.returncode

    def _read(self) -> None:
        ready, _, _ = select.select([self.descriptor], [], [], 0.1)
        if ready:
            try:
                self._raw += os.read(self.descriptor, 65536)
            except OSError:  # Linux' way to say that the other end is closed
                return
            self.shown += self._raw.decode()
            self._raw = b""


@contextmanager
def at_terminal(daemon: StartedDaemon, *args: str | Path) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "--socket", daemon.admin_socket, *args],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_one_answer_is_printed_and_what_it_took_where_that_is_wanted(daemon: StartedDaemon) -> None:
    done = run(daemon, "run", BRIEF, "Say hello.", "--verbose")
    below = run(daemon, "run", BRIEF, "Say hello.", "--verbose", piped="And more of it.\n")
    system = run(daemon, "run", BRIEF, "Say hello.", "--system", "One. " * 50, "--verbose")

    assert (done.returncode, below.returncode, system.returncode) == (0, 0, 0)
    assert len(done.stdout.strip()) > 0
    assert "\x1b" not in done.stdout
    assert "eval rate:" in done.stderr
    alone, more, told = (prompt_tokens(each.stderr) for each in (done, below, system))
    assert alone < more < told - 50


def test_an_answer_follows_the_schema_in_a_file(daemon: StartedDaemon, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    (tmp_path / "n.json").write_text(json.dumps(schema))

    by_schema = run(daemon, "run", MODEL, "--format", tmp_path / "n.json", piped="A number?")
    any_json = run(daemon, "run", "mine-or-not", "x", "--format", tmp_path / "none.json")

    assert json.loads(by_schema.stdout) == {"n": 7}
    assert any_json.returncode == 2
    assert "is neither json nor a file: No such file" in any_json.stderr


@pytest.mark.parametrize(
    ("args", "piped", "says"),
    [
        (("run", "none", "x"), "", "model 'none:latest' not found; --pull fetches it first"),
        (("run", MODEL), "", "there is no prompt: write one after MODEL, or pipe it in"),
        (("run", MODEL), b"\xff", "what is piped in is no UTF-8"),
        (("run", MODEL, "x", "--keepalive", "5"), "", 'did you mean "5s"?'),
        (("run", MODEL, "x", "--key", "ü"), "", "no API key: it is no plain text"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_status_1(
    daemon: StartedDaemon, args: tuple[str, ...], piped: str | bytes, says: str
) -> None:
    done = run(daemon, *args, piped=piped)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("inferenceosctl: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_where_keys_are_needed_one_is_told_by_option_or_variable(daemon: StartedDaemon) -> None:
    key = daemon.ctl("key", "add", "laptop").stdout.strip()
    try:
        without = run(daemon, "run", BRIEF, "Hi.")
        with_key = run(daemon, "run", BRIEF, "Hi.", "--key", key)
    finally:
        daemon.ctl("key", "revoke", key.split("-")[2])

    assert without.returncode == 1
    assert "an API key is needed; name one with --key or $INFERENCEOSD_API_KEY" in without.stderr
    assert with_key.returncode == 0, with_key.stderr


def test_a_daemon_that_speaks_https_is_asked_by_its_address(
    start: Callable[..., StartedDaemon], tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path)
    daemon = start(config=f'[server]\ntls_cert = "{cert}"\ntls_key = "{key}"\n')
    (tmp_path / "yes.json").write_text('{"enum": ["yes"]}')

    done = run(daemon, "run", MODEL, "Well?", "--format", tmp_path / "yes.json")

    assert (done.returncode, done.stdout, done.stderr) == (0, '"yes"\n', "")


def test_a_model_that_is_not_there_is_pulled_where_that_is_asked(
    daemon: StartedDaemon, model_dir: Path, tmp_path: Path
) -> None:
    (weights,) = model_dir.rglob(f"{MODEL}.gguf")
    brief_schema = tmp_path / "yes.json"
    brief_schema.write_text('{"enum": ["yes"]}')
    with registry(weights.read_bytes()) as at:
        asked = ("run", f"{at}/library/tiny:1", "Hi.")
        before = run(daemon, *asked)
        pulled = run(daemon, *asked, "--pull", "--insecure", "--format", brief_schema)
    after = run(daemon, *asked, "--pull", "--format", brief_schema)
    daemon.ctl("rm", asked[1])

    assert before.returncode == 1
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.splitlines()[0] == "pulling manifest"
    assert pulled.stdout.splitlines()[-2:] == ["success", '"yes"']
    assert (after.returncode, after.stdout) == (0, '"yes"\n')


def test_a_chat_keeps_what_was_said_until_it_is_told_to_forget_it(daemon: StartedDaemon) -> None:
    with at_terminal(daemon, "run", BRIEF, "--verbose") as terminal:

        def typed(text: str, until: str) -> str:
            terminal.wait_for(">>> ")
            terminal.type(f"{text}\n")
            return terminal.wait_for(until)

        first = prompt_tokens(typed("Say hello.", "eval rate"))
        second = prompt_tokens(typed('"""And\nmore.\n"""', "eval rate"))
        typed("/clear", "what was said is forgotten")
        cleared = prompt_tokens(typed("Say hello.", "eval rate"))
        typed(f"/set system {'One. ' * 50}", "the system prompt is set")
        typed("/clear", "what was said is forgotten")
        by_system = prompt_tokens(typed("Say hello.", "eval rate"))
        typed("/?", "/set system TEXT")
        typed("/odd", "/odd is no command")
        typed("", ">>> ")
        terminal.type("\x04")
        left = terminal.wait()

    assert left == 0
    assert second > first + 10
    assert cleared == first
    assert by_system > first + 50


def test_ctrl_c_stops_an_answer_and_frees_the_model_and_the_chat_goes_on(
    daemon: StartedDaemon, tmp_path: Path
) -> None:
    (tmp_path / "long.json").write_text(json.dumps(LONG))
    before = len(chats(daemon))
    with at_terminal(daemon, "run", MODEL, "--format", tmp_path / "long.json") as terminal:
        terminal.wait_for(">>> ")
        terminal.type("List booleans.\n")
        terminal.wait_for("[")
        terminal.type("\x03")
        terminal.wait_for("inferenceosctl: stopped")
        terminal.wait_for(">>> ")
        wait_for(lambda: any(each["error"] for each in chats(daemon)[before:]))
        wait_for(lambda: not any(one["running"] for one in daemon.status()["instances"]))
        stopped = chats(daemon)[-1]
        terminal.type("\x03")
        terminal.wait_for("/bye or Ctrl-D leaves")
        terminal.wait_for(">>> ")
        terminal.type("/bye\n")
        left = terminal.wait()

    assert left == 0
    assert stopped["error"] == "caller_left"
    assert (stopped["decode_tokens"] or 0) < 600


def test_one_answer_ends_by_an_interrupt_as_a_shell_expects_and_frees_the_model(
    daemon: StartedDaemon, tmp_path: Path
) -> None:
    (tmp_path / "long.json").write_text(json.dumps(LONG))
    before = len(chats(daemon))
    argv: list[str | Path] = [
        *(PROGRAM, "--socket", daemon.admin_socket, "run", MODEL, "List booleans."),
        *("--format", tmp_path / "long.json"),
    ]

    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=SOON_S)
    wait_for(lambda: any(each["error"] == "caller_left" for each in chats(daemon)[before:]))

    assert (process.returncode, told.strip()) == (130, b"")
