"""`inferenceosctl`: questions and orders to a running daemon, over its Unix socket."""

import io
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import click
import httpx
import msgspec

from inferenceosd import __version__, report
from inferenceosd.config import Options, read_config
from inferenceosd.config_error import ConfigError
from inferenceosd.platform_folders import runtime_folder, state_folder, this_platform
from planners.durations import BadDuration, parse_duration
from proxy.admin_values import (
    DEFAULT_EVENTS,
    DEFAULT_LINES,
    MAX_EVENTS,
    MAX_LINES,
    MAX_NUMBER,
    EventsReport,
    LoadReport,
    LogReport,
    ModelsReport,
    PlanReport,
    ReloadReport,
    StatusReport,
    UnloadReport,
)
from supervisor.printable import printable

EXIT_FAILED = 1
CONNECT_S = 5.0
ANSWER_S = 10.0  # the daemon has it in memory
WORK_S = 120.0  # it looks at devices, or tries engines, first
LOAD_S = 24 * 3600.0  # it knows when a load has stalled; we only wait
NAME_BYTES = 2048  # escaped for an address, still within the 8 KiB that the daemon reads

T = TypeVar("T")
Query = Mapping[str, str | int]

EPILOG = """\
\b
Examples:
  inferenceosctl status                   what runs, where, how fast, until when
  inferenceosctl plan qwen3 --context 32768
  inferenceosctl events --model qwen3 --since 1h
  inferenceosctl status --json | jq .devices

The socket is admin.sock in the daemon's runtime folder, or admin.socket of the configuration
that inferenceosd itself would read here.

Exit status: 0, 1 where the daemon does not answer or says no, 2 for wrong usage.
"""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What the daemon said, as sent and as understood."""

    sent: bytes
    value: T

    def show(self, text: Callable[[T], str], *, as_json: bool) -> None:
        """Print it: indented JSON as sent, or what `text` makes of it."""
        click.echo(msgspec.json.format(self.sent, indent=2) if as_json else text(self.value))


@dataclass(frozen=True, slots=True)
class Door:
    """The daemon's admin socket."""

    socket_path: str

    def get(self, path: str, kind: type[T], *, query: Query | None = None) -> Answer[T]:
        """What the daemon says about `path`."""
        return self._ask("GET", path, kind, query=query)

    def post(
        self,
        path: str,
        kind: type[T],
        *,
        body: Mapping[str, str | int | None] | None = None,
        within_s: float = ANSWER_S,
    ) -> Answer[T]:
        """What it says once it did what `path` means."""
        return self._ask("POST", path, kind, body=msgspec.json.encode(body), within_s=within_s)

    def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Query | None = None,
        body: bytes | None = None,
        within_s: float = ANSWER_S,
    ) -> Answer[T]:
        self._reach()
        transport = httpx.HTTPTransport(uds=self.socket_path)
        timeout = httpx.Timeout(CONNECT_S, read=within_s)
        with httpx.Client(
            transport=transport, timeout=timeout, base_url="http://inferenceosd"
        ) as client:
            try:
                reply = client.request(method, path, params=query, content=body)
            except httpx.TimeoutException:
                _fail(f"inferenceosd on {self.socket_path} gave no answer within {within_s:.0f} s")
            except (httpx.HTTPError, httpx.InvalidURL) as exc:
                _fail(f"inferenceosd on {self.socket_path} broke off: {exc}")
        if reply.is_error:
            _fail(_said(reply))
        return _decoded(reply.content, kind)

    def _reach(self) -> None:
        """Ends the program with a precise sentence where nobody listens: httpx does not tell."""
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(CONNECT_S)
            try:
                tried.connect(self.socket_path)
            except PermissionError:
                _fail(
                    f"{self.socket_path} belongs to another user; try again as root or as that user"
                )
            except OSError:
                _fail(
                    f"no inferenceosd answers on {self.socket_path}; start it with inferenceosd,"
                    " or name its socket with --socket"
                )


_NO_ANSWER = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _said(reply: httpx.Response) -> str:
    """The sentence in an error's body, where it is one of ours."""
    try:
        return msgspec.json.decode(reply.content, type=dict[str, str])["error"]
    except (*_NO_ANSWER, KeyError):
        return f"inferenceosd answered with HTTP {reply.status_code}"


def _decoded(content: bytes, kind: type[T]) -> Answer[T]:
    try:
        return Answer(content, msgspec.json.decode(content, type=kind))
    except _NO_ANSWER as exc:
        _fail(f"inferenceosd speaks of what this inferenceosctl does not know ({exc}); update it")


def _fail(sentence: str) -> NoReturn:
    """Ends the program with one line, whatever names and texts of others the sentence holds."""
    click.echo(f"inferenceosctl: {printable(sentence)}", err=True)
    sys.exit(EXIT_FAILED)


def _usual_socket() -> str:
    """Where a daemon started here would listen; a broken configuration does not keep us out."""
    try:
        return read_config(Options()).admin_socket
    except ConfigError:
        platform = this_platform()
        state_dir = state_folder(os.environ, platform)
        run_dir = runtime_folder(os.environ, platform, state_dir=state_dir)
        return os.path.join(run_dir, "admin.sock")


class Duration(click.ParamType[float]):
    """A span of time, in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = parse_duration(value)
        except BadDuration as exc:
            self.fail(str(exc), param, ctx)
        if not 0 < seconds < math.inf:
            self.fail("must be a span such as 1h or 30m", param, ctx)
        return seconds


class Name(click.ParamType[str]):
    """What may be the name of a model; which are, the daemon knows."""

    name = "model"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        name = str(value)
        try:
            n_bytes = len(name.encode())
        except UnicodeEncodeError:
            _fail(f"{name!r} is no model: it is no UTF-8")
        if n_bytes > NAME_BYTES:
            _fail(f"no model has a name of {n_bytes} bytes; the longest have {NAME_BYTES}")
        return name


class Program(click.Group):
    """The commands, and what may fail in all of them."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one; what cannot be printed as it is, is escaped. Does not return."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().main(*args, **kwargs)
        except OSError as exc:
            # What is left in the buffer would fail once more, with a traceback, at the very end.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _fail(f"cannot write the answer: {exc.strerror or exc}")


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


@click.group(cls=Program, epilog=EPILOG)
@click.option(
    "--socket",
    "socket_path",
    metavar="PATH",
    envvar="INFERENCEOSD_ADMIN_SOCKET",
    help="The daemon's admin socket. [$INFERENCEOSD_ADMIN_SOCKET]",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context, socket_path: str | None) -> None:
    """Ask a running inferenceosd what it does, and tell it what to do."""
    context.obj = Door(socket_path or _usual_socket())


@main.command()
@as_json_option
@click.pass_obj
def status(door: Door, as_json: bool) -> None:
    """Show models in memory, devices, and engines.

    Per model: its process, layers per device, context × slots, memory predicted and measured,
    requests, speed, and how long it stays. Per device: total, free, and what is ours.
    """
    now = time.time()
    answer = door.get("/status", StatusReport)
    answer.show(lambda value: report.status_text(value, now=now), as_json=as_json)


@main.command()
@as_json_option
@click.pass_obj
def models(door: Door, as_json: bool) -> None:
    """List the models on offer, and files that cannot be offered with the reason."""
    door.get("/models", ModelsReport).show(report.models_text, as_json=as_json)


@main.command()
@click.argument("model", type=Name())
@click.option("--context", type=click.IntRange(1, MAX_NUMBER), help="Tokens one request may use.")
@click.option("--parallel", type=click.IntRange(1, MAX_NUMBER), help="Requests served at once.")
@as_json_option
@click.pass_obj
def plan(door: Door, model: str, context: int | None, parallel: int | None, as_json: bool) -> None:
    """Show how MODEL would be launched now, and why; loads nothing.

    Exit status 1 where it does not fit.
    """
    asked = {"model": model, "context": context, "parallel": parallel}
    answer = door.post("/plan", PlanReport, body=asked, within_s=WORK_S)
    answer.show(report.plan_text, as_json=as_json)
    if answer.value.plan is None:
        sys.exit(EXIT_FAILED)


@main.command()
@click.argument("model", type=Name())
@click.pass_obj
def load(door: Door, model: str) -> None:
    """Load MODEL and wait until it is ready."""
    answer = door.post("/load", LoadReport, body={"model": model}, within_s=LOAD_S)
    answer.show(report.load_text, as_json=False)


@main.command()
@click.argument("model", type=Name())
@click.pass_obj
def unload(door: Door, model: str) -> None:
    """Unload MODEL once its running requests are done."""
    door.post("/unload", UnloadReport, body={"model": model}).show(
        report.unload_text, as_json=False
    )


@main.command()
@click.pass_obj
def reload(door: Door) -> None:
    """Apply the changed configuration; models it does not touch go on undisturbed.

    A wrong configuration changes nothing: its first mistake is printed, exit status 1.
    """
    door.post("/reload", ReloadReport, within_s=WORK_S).show(report.reload_text, as_json=False)


@main.command()
@click.argument("model", type=Name())
@click.option(
    "--tail",
    type=click.IntRange(1, MAX_LINES),
    default=DEFAULT_LINES,
    show_default=True,
    help="Lines.",
)
@click.pass_obj
def logs(door: Door, model: str, tail: int) -> None:
    """Print the last lines that the llama-server of MODEL wrote."""
    query: Query = {"model": model, "tail": tail}
    door.get("/logs", LogReport, query=query).show(report.log_text, as_json=False)


@main.command()
@click.option("--model", type=Name(), help="Only of this model.")
@click.option("--since", type=Duration(), metavar="SPAN", help="Only of the last 1h, 30m, ...")
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_EVENTS),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="At most.",
)
@as_json_option
@click.pass_obj
def events(door: Door, model: str | None, since: float | None, limit: int, as_json: bool) -> None:
    """Print what happened and why: loads, unloads, evictions, crashes, refusals."""
    query: dict[str, str | int] = {"limit": limit}
    if model is not None:
        query["model"] = model
    if since is not None:
        query["since_s"] = math.ceil(since)
    door.get("/events", EventsReport, query=query).show(report.events_text, as_json=as_json)
