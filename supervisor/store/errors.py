"""What a store cannot do, each with the facts and what to do about it."""

from planners.sizes import format_size
from supervisor.errors import SupervisorError
from supervisor.printable import printable
from supervisor.store.digests import Digest


class StoreError(SupervisorError):
    """A store was not changed as asked."""


class NotStored(StoreError):
    """No model of that name is known."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"model '{name}' not found")


class NotOurs(StoreError):
    """The model is there, but not the daemon's to change."""

    def __init__(self, name: str, *, path: str, store: str) -> None:
        self.name, self.path, self.store = name, path, store
        do = (
            "remove it with the program that keeps that store"
            if store
            else "remove that file, which takes the model along"
        )
        super().__init__(
            f"model '{name}' is {_whose(path, store)}, which inferenceosd only reads; {do}"
        )


class NameTaken(StoreError):
    """A model that is not the daemon's to change has the name already."""

    def __init__(self, name: str, *, path: str, store: str) -> None:
        self.name, self.path, self.store = name, path, store
        whose = _whose(path, store)
        super().__init__(
            f"the name '{name}' is that of a model {whose}, which inferenceosd only reads;"
            " choose another name"
        )


class DigestMismatch(StoreError):
    """What came is not what its digest says."""

    def __init__(self, *, expected: Digest, got: Digest) -> None:
        self.expected, self.got = expected, got
        super().__init__(f'digest mismatch, expected "{expected}", got "{got}"')


class BlobMissing(StoreError):
    """A blob that a model needs is not in the store, or not whole."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        super().__init__(f"blob {digest} is not in the store; upload it, or pull the model again")


class NoRoom(StoreError):
    """The disk would be full; without `needed_bytes`, it ran full in the middle of the writing."""

    def __init__(self, *, folder: str, needed_bytes: int | None, free_bytes: int) -> None:
        self.folder, self.needed_bytes, self.free_bytes = folder, needed_bytes, free_bytes
        why = (
            f"the disk of {printable(folder)} ran full meanwhile"
            if needed_bytes is None
            else f"{format_size(needed_bytes)} are needed in {printable(folder)}, and"
            f" {format_size(free_bytes)} may be used there"
        )
        super().__init__(f"{why}; remove models, or move the state folder")


class Unwritable(StoreError):
    """The store's disk does not take what is written."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{printable(path)} cannot be written: {why}; check whose that folder is and its disk,"
            " or move the state folder"
        )


class Unreadable(StoreError):
    """The store's disk does not give what is read."""

    def __init__(self, *, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"{printable(path)} cannot be read: {why}; check whose that file is and its disk, or"
            " pull its model again"
        )


class NotPushed(StoreError):
    """Where the model's name says it cannot be sent, or it is no stored model."""

    def __init__(self, name: str, *, is_file: bool) -> None:
        self.name, self.is_file = name, is_file
        do = (
            "it is a file, and what is stored can be pushed: copy it first, to the name of a"
            " registry such as HOST:5000/library/NAME"
            if is_file
            else "no account of ollama.com or of a hub is kept here; copy it to the name of a"
            " registry of your own, such as HOST:5000/library/NAME, and push that"
        )
        super().__init__(f"model '{name}' is not pushed: {do}")


class NotStorable(StoreError):
    """What was to be a stored model cannot be one."""


def _whose(path: str, store: str) -> str:
    return f"in the store {printable(store)}" if store else f"the file {printable(path)}"
