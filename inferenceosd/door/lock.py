"""What locks the public port: API keys and TLS, from their files, and whether it may be open.

Who can be reached from elsewhere without a key does not start, unless told that this is meant.
"""

import os
from collections.abc import Mapping
from ssl import SSLContext

import structlog
from msgspec import Struct

from inferenceosd.door.key_file import KeyFileRefused, read_keys
from inferenceosd.door.tls_files import TlsFiles, TlsRefused
from inferenceosd.settings.config import Config
from inferenceosd.settings.error import ConfigError
from proxy.admin.status import LockReport
from proxy.admission.gate import Gate, Management
from proxy.admission.keys import ApiKey, KeyRing

log = structlog.get_logger(__name__)

_Stamp = tuple[tuple[int, int, int, int] | None, ...]


def check_lock(config: Config, *, is_local: bool) -> None:
    """Raises ConfigError where a daemon with this configuration would not start for its lock."""
    _locked(config, is_local=is_local)


class _Parts(Struct, frozen=True):
    keys: tuple[ApiKey, ...]
    tls: TlsFiles | None


def _locked(config: Config, *, is_local: bool) -> _Parts:
    try:
        keys = read_keys(config.keys_file) or ()
        tls = None if config.tls is None else TlsFiles(*config.tls)
    except KeyFileRefused as exc:
        raise ConfigError(str(exc), source="server.keys") from exc
    except TlsRefused as exc:
        raise ConfigError(str(exc), source="server.tls_cert") from exc
    if not is_local and not keys and not config.is_insecure:
        raise ConfigError(
            f"{config.listen} can be reached from elsewhere, and there is no API key: make one"
            " (inferenceosctl key add NAME), listen on 127.0.0.1, or, where something else keeps"
            " strangers out, say --insecure (INFERENCEOSD_SERVER_INSECURE=true in a container)",
            source="server.listen",
        )
    return _Parts(keys, tls)


class DoorLock:
    """The keys and the certificate in force; both follow their files."""

    def __init__(self, config: Config, *, is_local: bool) -> None:
        """Raises ConfigError."""
        self._config, self.is_local = config, is_local
        self._stamp = self._stamped()
        parts = _locked(config, is_local=is_local)
        self._keys, self.tls = parts.keys, parts.tls
        self.mistake: str | None = None
        """Why what the files hold now is not in force."""

    @property
    def context(self) -> SSLContext | None:
        """What the port listens with; None for plain HTTP."""
        return None if self.tls is None else self.tls.context

    @property
    def _expires_at(self) -> float | None:
        return None if self.tls is None else self.tls.expires_at

    @property
    def _needs_key(self) -> bool:
        """True where keys exist; the last one revoked, it is still true for all but this machine.

        So no edit of the file opens a port that was locked.
        """
        return bool(self._keys) or not (self.is_local or self._config.is_insecure)

    def report(self) -> LockReport:
        """For `inferenceosctl status` and `doctor`."""
        return LockReport(
            keys=len(self._keys),
            keys_file=self._config.keys_file,
            is_open=not self.is_local and not self._needs_key,
            tls_expires_at=self._expires_at,
            mistake=self.mistake,
        )

    @property
    def key_names(self) -> Mapping[str, str]:
        """What each key is called, by its id."""
        return {key.key_id: key.name for key in self._keys}

    def gate(self, management: Management, *, has_pages: bool = False) -> Gate:
        """The lock as requests meet it."""
        return Gate(KeyRing(self._keys), self._needs_key, management, has_pages)

    def has_changed(self) -> bool:
        """True when a file is another than at the last look."""
        return self._stamped() != self._stamp

    def read_again(self) -> None:
        """Goes by the files as they are now; what is wrong with one is told, and changes nothing.

        A file of keys that is gone is wrong too: revoking leaves an empty one.
        """
        self._stamp = self._stamped()
        before, mistakes = (self._keys, self.report()), []
        try:
            keys = read_keys(self._config.keys_file)
            if keys is None and self._keys:
                raise KeyFileRefused(self._config.keys_file, "it is gone; those it held stay")
            self._keys = keys or ()
        except KeyFileRefused as exc:
            mistakes.append(str(exc))
        try:
            if self.tls is not None:
                self.tls.load()
        except TlsRefused as exc:
            mistakes.append(str(exc))
        self.mistake = "; ".join(mistakes) or None
        if (self._keys, self.report()) == before:
            return
        if self.mistake is not None:
            log.error("lock.refused", reason=self.mistake)
        else:
            log.info("lock.changed", keys=len(self._keys), expires_at=self._expires_at)

    def _stamped(self) -> _Stamp:
        paths = (self._config.keys_file, *(self._config.tls or ()))
        return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    """What tells a file from what it was; its mode and owner count, as they may be mended."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
