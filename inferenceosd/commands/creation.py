"""A Modelfile and the files it names, on their way to /api/create."""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from inferenceosd.commands.client_port import ClientPort
from inferenceosd.commands.progress import Tell
from planners.modelfile import BadModelfile, Modelfile, read_modelfile
from proxy.admin.shelf import PullLine
from proxy.prompt.options import OPTIONS
from supervisor.printable import printable

MAX_MODELFILE_BYTES = 4 << 20  # four times what a store keeps of a model's texts
CHUNK_BYTES = 1 << 20
STDIN = "-"


class BadSource(Exception):
    """A file that cannot be read or used; the message names it."""


class Order(Struct, frozen=True):
    """What /api/create is to be told, and the files that go there before."""

    told: Modelfile
    base: str | None
    """The model it is made from; None where it is made from files."""
    files: tuple[Path, ...]
    adapters: tuple[Path, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Parameters that were left out."""
        return self.told.dropped


def read_order(path: str) -> Order:
    """What the Modelfile at `path` asks for. Raises BadSource."""
    try:
        told = read_modelfile(_text(path), kinds=OPTIONS)
    except BadModelfile as exc:
        raise BadSource(f"{_name(path)}: {exc}") from exc
    folder = Path() if path == STDIN else Path(path).parent
    found = [_file(folder, base) for base in told.bases]
    files = tuple(file for file in found if file is not None)
    if len(told.bases) > 1 and len(files) < len(found):
        raise BadSource(f"{_name(path)}: several FROM name one GGUF file each, never a model")
    return Order(
        told,
        base=None if files else told.bases[0],
        files=files,
        adapters=tuple(_adapter(folder, each) for each in told.adapters),
    )


def _name(path: str) -> str:
    return "the Modelfile" if path == STDIN else path


def _text(path: str) -> str:
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MAX_MODELFILE_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_MODELFILE_BYTES + 1)
    except OSError as exc:
        raise BadSource(f"{_name(path)} cannot be read: {exc.strerror}") from exc
    if len(content) > MAX_MODELFILE_BYTES:
        raise BadSource(f"{_name(path)} is longer than {MAX_MODELFILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise BadSource(f"{_name(path)} is no UTF-8") from exc


def _file(folder: Path, said: str) -> Path | None:
    """The file that FROM names; None for the name of a model. Raises BadSource.

    A file goes before a model of the same name, as with Ollama.
    """
    path = folder / os.path.expanduser(said)
    if path.is_file():
        return path
    looks_like_one = said.startswith(("/", "./", "../", "~")) or said.lower().endswith(".gguf")
    if not looks_like_one:
        return None
    why = "is a folder; name the GGUF file in it" if path.is_dir() else "is not there"
    raise BadSource(f"{path} {why}")


def _adapter(folder: Path, said: str) -> Path:
    path = folder / os.path.expanduser(said)
    if not path.is_file():
        raise BadSource(f"{path}, an ADAPTER, is no file")
    return path


def send(port: ClientPort, model: str, order: Order, *, tell: Tell) -> PullLine:
    """Upload the files and have the model made, told step by step; the last step.

    Raises BadSource, Refused.
    """
    files = {name: _sent(port, name, path, tell) for name, path in _by_name(order.files)}
    adapters = {name: _sent(port, name, path, tell) for name, path in _by_name(order.adapters)}
    last = PullLine()
    body = request(model, order, files=files, adapters=adapters)
    for last in port.lines("/api/create", body, PullLine):
        tell(last)
    return last


def request(
    model: str, order: Order, *, files: dict[str, str], adapters: dict[str, str]
) -> dict[str, object]:
    """The body of /api/create; files by name with their digests. Pure."""
    told = order.told
    asked: dict[str, object] = {
        "model": model,
        "from": order.base,
        "files": files,
        "adapters": adapters,
        "parameters": dict(told.parameters),
        "messages": told.messages,
        "license": told.licenses,
        **dict(told.texts),
    }
    return {name: value for name, value in asked.items() if value}


def _by_name(paths: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Each with a name of its own, by which the daemon tells what kind of file it is."""
    for number, path in enumerate(paths):
        yield f"{number}/{path.name}", path


def _sent(port: ClientPort, name: str, path: Path, tell: Tell) -> str:
    """The digest of a file that the store has now. Raises BadSource, Refused."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            hashed = hashlib.sha256()
            for chunk in _chunks(file, f"reading {path.name}", size, tell):
                hashed.update(chunk)
            digest = f"sha256:{hashed.hexdigest()}"
            if port.has(f"/api/blobs/{digest}"):
                return digest
            file.seek(0)
            content = _chunks(file, f"uploading {path.name}", size, tell)
            # Told beforehand: the daemon looks whether the disk has room for it.
            told = {"content-length": str(size)}
            port.post(f"/api/blobs/{digest}", content, headers=told)
    except OSError as exc:
        raise BadSource(f"{path} cannot be read: {exc.strerror or exc}") from exc
    return digest


def _chunks(file: BinaryIO, status: str, size: int, tell: Tell) -> Iterator[bytes]:
    done = 0
    while done < size and (chunk := file.read(min(CHUNK_BYTES, size - done))):
        yield chunk
        done += len(chunk)
        tell(PullLine(printable(status), digest=status, total=size, completed=done))
