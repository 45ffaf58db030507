"""The file of API keys: read with its mode checked, edited under a lock, replaced in one step.

The daemon reads it and inferenceosctl writes it, with or without a daemon.
"""

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_bytes

import msgspec

from planners.sizes import MIB
from proxy.admission.keys import ID_BYTES, SCOPES, SECRET_BYTES, ApiKey, Scope, digest_of, token_of
from supervisor.kept_file import open_at_once

MAX_FILE_BYTES = MIB
MAX_KEYS = 1000
MAX_NAME = 64
LOCK_S = 5.0  # an edit takes milliseconds
LOOK_S = 0.02  # cadence of trying for the lock
PRIVATE = 0o600


class KeyFileRefused(Exception):
    """A file of keys that cannot be gone by, or not be written."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"the API keys in {path} cannot be used: {why}")


class UnknownKey(Exception):
    """No key has that id; some may have that name."""

    def __init__(self, key_id: str, named: tuple[str, ...] = ()) -> None:
        """`named`: the ids of those that are called so."""
        self.key_id, self.named = key_id, named
        if named:
            ids = ", ".join(named)
            told = f"a key is revoked by its id, not its name; of {key_id!r} that is: {ids}"
        else:
            told = f"there is no API key {key_id!r}; inferenceosctl key list has all"
        super().__init__(told)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    name: str
    scope: str
    sha256: str
    created_at: float
    expires_at: float | None = None


class _Entries(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[_Entry]


_DECODER = msgspec.json.Decoder(_Entries)


def read_keys(path: str) -> tuple[ApiKey, ...] | None:
    """The keys in the file; None where there is none. Raises KeyFileRefused."""
    try:
        with open(path, "rb", opener=open_at_once) as stream:
            _check(path, os.fstat(stream.fileno()))
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise KeyFileRefused(path, exc.strerror or str(exc)) from exc
    if len(data) > MAX_FILE_BYTES:
        raise KeyFileRefused(path, f"it is longer than {MAX_FILE_BYTES} bytes")
    return _decoded(path, data)


def add_key(path: str, *, name: str, scope: Scope, expires_at: float | None) -> tuple[ApiKey, str]:
    """A new key and its token, which nothing keeps. Raises KeyFileRefused."""
    key_id, token = token_of(token_bytes(ID_BYTES + SECRET_BYTES))
    key = ApiKey(key_id, name, scope, digest_of(token), time.time(), expires_at)
    with _locked(path):
        keys = read_keys(path) or ()
        if len(keys) >= MAX_KEYS:
            raise KeyFileRefused(path, f"it holds {MAX_KEYS} keys already; revoke some")
        _write(path, (*keys, key))
    return key, token


def revoke_key(path: str, key_id: str) -> tuple[ApiKey, int]:
    """The key that is gone, and how many are left. Raises KeyFileRefused, UnknownKey."""
    with _locked(path):
        keys = read_keys(path) or ()
        gone = next((key for key in keys if key.key_id == key_id), None)
        if gone is None:
            named = tuple(key.key_id for key in keys if key.name == key_id)
            raise UnknownKey(key_id, named)
        left = tuple(key for key in keys if key is not gone)
        _write(path, left)
    return gone, len(left)


def _check(path: str, found: os.stat_result) -> None:
    """Raises KeyFileRefused where somebody else may read or write the file."""
    if not stat.S_ISREG(found.st_mode):
        raise KeyFileRefused(path, "it is no file")
    if found.st_uid not in _owners(path):
        raise KeyFileRefused(path, f"it belongs to another user, {found.st_uid}; chown it")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise KeyFileRefused(path, f"its mode is {mode:04o}, so that others reach it; chmod 600 it")


def _owners(path: str) -> set[int]:
    """Who may own the file: we, root, and before root whoever owns the daemon's folder."""
    owners = {os.geteuid(), 0}
    if os.geteuid() == 0:
        owners.add(_folder_of(path).st_uid)
    return owners


def _folder_of(path: str) -> os.stat_result:
    return os.stat(os.path.dirname(path) or ".")


def _decoded(path: str, data: bytes) -> tuple[ApiKey, ...]:
    try:
        entries = _DECODER.decode(data).keys
        keys = tuple(_key(entry) for entry in entries)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, KeyError) as exc:
        raise KeyFileRefused(path, f"it is not what inferenceosctl key writes: {exc}") from exc
    if len({key.key_id for key in keys}) != len(keys):
        raise KeyFileRefused(path, "two keys have one id")
    return keys


def _key(entry: _Entry) -> ApiKey:
    digest = bytes.fromhex(entry.sha256)
    if len(digest) != 32:
        raise ValueError(f"the sha256 of {entry.id} has {len(digest)} bytes")
    scope = SCOPES[entry.scope]
    return ApiKey(entry.id, entry.name, scope, digest, entry.created_at, entry.expires_at)


def _encoded(keys: tuple[ApiKey, ...]) -> bytes:
    entries = [
        _Entry(k.key_id, k.name, k.scope.word, k.sha256.hex(), k.created_at, k.expires_at)
        for k in keys
    ]
    return msgspec.json.format(msgspec.json.encode(_Entries(entries)), indent=2) + b"\n"


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Sole right to edit, waited for LOCK_S. The lock has a file of its own: ours is replaced."""
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        file = _opened(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    except OSError as exc:
        raise KeyFileRefused(path, exc.strerror or str(exc)) from exc
    try:
        until_s = time.monotonic() + LOCK_S
        while not _has_lock(file):
            if time.monotonic() > until_s:
                raise KeyFileRefused(path, f"somebody has been editing it for {LOCK_S:.0f} s")
            time.sleep(LOOK_S)
        yield
    finally:
        os.close(file)


def _has_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(path: str, keys: tuple[ApiKey, ...]) -> None:
    fresh = f"{path}.new"  # ours alone, by the lock; one that a killed edit left is of no use
    try:
        with suppress(FileNotFoundError):
            os.unlink(fresh)
        with open(_opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:
            stream.write(_encoded(keys))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(fresh, path)
    except OSError as exc:
        raise KeyFileRefused(path, exc.strerror or str(exc)) from exc


def _opened(path: str, flags: int) -> int:
    """A private file; made by root, it belongs to whoever owns its folder: the daemon's user."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
    if os.geteuid() == 0:
        folder = _folder_of(path)
        os.fchown(file, folder.st_uid, folder.st_gid)
    return file
