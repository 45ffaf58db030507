"""The daemon's admin socket, as inferenceosctl asks it; ends the program where it cannot answer."""

import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, NoReturn, TypeVar

import click
import httpx
import msgspec

from proxy.admin.records import SIGN_OF_LIFE_S
from supervisor.leases.lease import TAIL_HEADING
from supervisor.printable import printable

EXIT_FAILED = 1
CONNECT_S = 5.0
ANSWER_S = 10.0  # the daemon has it in memory
SILENCE_S = 4 * SIGN_OF_LIFE_S  # of a stream
WORK_S = 120.0  # it looks at devices, or tries engines, first

T = TypeVar("T")
Query = Mapping[str, str | int]


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """What the daemon said, as sent and as understood."""

    sent: bytes
    value: T

    def show(self, text: Callable[[T], str], *, as_json: bool) -> None:
        """Print it: indented JSON as sent, or what `text` makes of it."""
        click.echo(msgspec.json.format(self.sent, indent=2) if as_json else text(self.value))


class Door(msgspec.Struct, frozen=True):
    """The daemon's admin socket."""

    socket_path: str
    unread: str = ""
    """Why the configuration, which may name another socket, cannot be read; "" where it can."""

    def get(
        self, path: str, kind: type[T], *, query: Query | None = None, within_s: float = ANSWER_S
    ) -> Answer[T]:
        """What the daemon says about `path`."""
        return self._ask("GET", path, kind, query=query, within_s=within_s)

    def post(
        self,
        path: str,
        kind: type[T],
        *,
        body: Mapping[str, str | float | bool | Sequence[str | float] | None] | None = None,
        within_s: float = ANSWER_S,
    ) -> Answer[T]:
        """What it says once it did what `path` means."""
        return self._ask("POST", path, kind, body=msgspec.json.encode(body), within_s=within_s)

    def follow(self, path: str, kind: type[T], *, query: Query) -> Iterator[T]:
        """What it says about `path`, line by line, until it ends; silence ends the program."""
        yield from self._lines("GET", path, kind, query={**query, "follow": 1})

    def told(self, path: str, kind: type[T], *, body: Mapping[str, str | bool]) -> Iterator[T]:
        """What it says of an order while it carries it out, likewise."""
        yield from self._lines("POST", path, kind, body=msgspec.json.encode(body))

    def _lines(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Query | None = None,
        body: bytes | None = None,
    ) -> Iterator[T]:
        self._reach()
        try:
            with (
                self._client(SILENCE_S) as client,
                client.stream(method, path, params=query, content=body) as reply,
            ):
                if reply.is_error:
                    reply.read()
                    fail(_said(reply))
                for line in reply.iter_lines():
                    yield _decoded(line.encode(), kind).value
        except httpx.TimeoutException:
            fail(f"inferenceosd on {self.socket_path} gave no sign of life for {SILENCE_S:.0f} s")
        except httpx.HTTPError as exc:
            fail(f"inferenceosd on {self.socket_path} broke off, as if it was killed: {exc}")

    def _client(self, within_s: float) -> httpx.Client:
        return httpx.Client(
            # verify=False: no TLS on a Unix socket, and loading certificates outlasts the answer.
            transport=httpx.HTTPTransport(uds=self.socket_path, verify=False),
            timeout=httpx.Timeout(CONNECT_S, read=within_s),
            base_url="http://inferenceosd",
        )

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
        with self._client(within_s) as client:
            try:
                reply = client.request(method, path, params=query, content=body)
            except httpx.TimeoutException:
                fail(f"inferenceosd on {self.socket_path} gave no answer within {within_s:.0f} s")
            except (httpx.HTTPError, httpx.InvalidURL) as exc:
                fail(f"inferenceosd on {self.socket_path} broke off: {exc}")
        if reply.is_error:
            fail(_said(reply))
        return _decoded(reply.content, kind)

    def is_open(self) -> bool:
        """True when a daemon listens there and lets us in."""
        try:
            self._connect()
        except OSError:
            return False
        return True

    def is_silent(self) -> bool:
        """True when nobody listens there, which a socket that is not ours to use does not say."""
        try:
            self._connect()
        except PermissionError:
            return False
        except OSError:
            return True
        return False

    def _reach(self) -> None:
        """Ends the program with a precise sentence where nobody listens: httpx does not tell."""
        try:
            self._connect()
        except PermissionError:
            fail(f"{self.socket_path} belongs to another user; try again as root or as that user")
        except OSError:
            remedy = "start it with inferenceosd, or name its socket with --socket"
            if self.unread:
                remedy = (
                    f"it may use another, but {self.unread}; mend that, or name it with --socket"
                )
            fail(f"no inferenceosd answers on {self.socket_path}; {remedy}")

    def _connect(self) -> None:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(CONNECT_S)
            tried.connect(self.socket_path)


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
        fail(f"inferenceosd speaks of what this inferenceosctl does not know ({exc}); update it")


def fail(sentence: str) -> NoReturn:
    """End the program with one line, whatever names and texts of others the sentence holds.

    The lines of a log that it ends with are below it.
    """
    said, heading, tail = sentence.partition(f"\n{TAIL_HEADING}\n")
    lines = (TAIL_HEADING, *tail.split("\n")) if heading else ()
    click.echo("\n".join(map(printable, (f"inferenceosctl: {said}", *lines))), err=True)
    sys.exit(EXIT_FAILED)
