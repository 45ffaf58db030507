"""The port that the daemon serves clients on, as inferenceosctl itself uses it: to chat, to upload.

The admin socket says where it is; what is asked there is asked as any client of Ollama's would.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import click
import httpx
import msgspec

from inferenceosd.commands.admin_client import CONNECT_S, Door, fail
from inferenceosd.settings.environment import API_KEY_VARIABLE
from proxy.admin.status import StatusReport

ANSWER_S = 24 * 3600.0  # it knows when a load, a reply or a copy has stalled; we only wait
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

T = TypeVar("T")

key_option = click.option(
    "--key",
    metavar="KEY",
    envvar=API_KEY_VARIABLE,
    help="An API key, where the daemon needs one. [$INFERENCEOSD_API_KEY]",
)


class _Error(msgspec.Struct):
    error: str


class Refused(Exception):
    """What the daemon did not do, in its own sentence; `status` is HTTP's, 0 in mid-reply."""

    def __init__(self, sentence: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(sentence)


class ClientPort(msgspec.Struct, frozen=True):
    """Where clients are served; every call raises Refused where it is not answered."""

    client: httpx.Client

    def has(self, path: str) -> bool:
        """Whether it is there."""
        with _answered():
            status = self.client.head(path).status_code
        if status not in (200, 404):
            self.post(path, b"")  # the answer to HEAD has no sentence; this one will
        return status == 200

    def post(
        self,
        path: str,
        content: bytes | Iterator[bytes],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Sends it, and waits until it was taken."""
        with _answered():
            reply = self.client.post(path, content=content, headers=headers)
        if reply.is_error:
            _refuse(reply)

    def lines(
        self, path: str, body: Mapping[str, object], kind: type[T]
    ) -> Generator[T, None, None]:
        """The lines of its answer as they come. What leaves them early ends the work."""
        with (
            _answered(),
            self.client.stream("POST", path, content=msgspec.json.encode(body)) as reply,
        ):
            if reply.is_error:
                reply.read()
                _refuse(reply)
            for line in reply.iter_lines():
                yield msgspec.json.decode(line, type=kind)


@contextmanager
def client_port(door: Door, key: str | None) -> Iterator[ClientPort]:
    """The running daemon's port; ends the program where no daemon runs."""
    if key and not (key.isascii() and key.isprintable()):
        fail("what --key or $INFERENCEOSD_API_KEY names is no API key: it is no plain text")
    daemon = door.get("/status", StatusReport).value.daemon
    is_tls = daemon.lock is not None and daemon.lock.tls_expires_at is not None
    with _client(daemon.listen, is_tls=is_tls, key=key) as client:
        yield ClientPort(client)


def _client(listen: str, *, is_tls: bool, key: str | None) -> httpx.Client:
    address = listen.partition(", ")[0]
    uds = address if address.startswith("/") else None
    host, _, port = address.rpartition(":")
    where = "localhost" if uds else f"{_ANYWHERE.get(host, host)}:{port}"
    return httpx.Client(
        # verify=False: the address is this machine's own and comes from the daemon itself, and a
        # certificate is made out for the name by which other machines know it.
        transport=httpx.HTTPTransport(uds=uds, verify=False),
        timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
        base_url=f"{'https' if is_tls else 'http'}://{where}",
        headers={"authorization": f"Bearer {key}"} if key else {},
    )


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as exc:
        raise Refused(f"inferenceosd broke off: {exc}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise Refused(
            f"inferenceosd speaks of what this inferenceosctl does not know ({exc}); update it"
        ) from exc


def _refuse(reply: httpx.Response) -> NoReturn:
    try:
        said = msgspec.json.decode(reply.content, type=_Error).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = f"inferenceosd answered with HTTP {reply.status_code}"
    if reply.status_code == 401:  # whose sentence goes on with headers
        remedy = "name one with --key or $INFERENCEOSD_API_KEY; inferenceosctl key add makes one"
        said = f"{said.partition(';')[0]}; {remedy}"
    raise Refused(said, status=reply.status_code)
