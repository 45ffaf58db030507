"""TLS from two PEM files: checked, served by one context, and replaced while connections go on."""

import os
import ssl
import stat
from datetime import UTC, datetime

from supervisor.kept_file import open_at_once

MAX_PEM_BYTES = 1 << 20
PROTOCOLS = ["http/1.1"]
_TAG_VERSION = 0xA0
_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}  # UTCTime, GeneralizedTime (RFC 5280)


class TlsRefused(Exception):
    """A certificate or key that cannot be served with."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"TLS cannot be served from {path}: {why}")


class TlsFiles:
    """A certificate and its key as they are on disk, in force since the last `load`."""

    def __init__(self, certificate: str, key: str) -> None:
        """Raises TlsRefused."""
        self._paths = certificate, key
        self._current, self.expires_at = self._loaded()
        self.context = _context(certificate, key)
        """What listens. Each handshake is given the newest pair, so that nothing listens anew."""
        self.context.sni_callback = self._greet

    def load(self) -> None:
        """Reads both again. Raises TlsRefused; the pair in force stays then."""
        self._current, self.expires_at = self._loaded()

    def _greet(self, handshake: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        handshake.context = self._current

    def _loaded(self) -> tuple[ssl.SSLContext, float]:
        certificate, key = self._paths
        expires_at = expiry_of(certificate)
        _check_key(key)
        return _context(certificate, key), expires_at


def _context(certificate: str, key: str) -> ssl.SSLContext:
    """What serves the pair. Raises TlsRefused where the two do not match."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as exc:
        why = f"it is no key of {certificate}, or has a password ({exc.reason or 'unreadable'})"
        raise TlsRefused(key, why) from exc
    except OSError as exc:
        raise TlsRefused(key, exc.strerror or str(exc)) from exc
    return context


def expiry_of(certificate: str) -> float:
    """When the first certificate of a PEM file ends, in UTC seconds. Raises TlsRefused."""
    text, _ = _text_and_mode(certificate)
    begin, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    if begin < 0 or end < begin:
        raise TlsRefused(certificate, "it holds no certificate in PEM")
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)]))
    except (ValueError, IndexError, KeyError) as exc:
        raise TlsRefused(certificate, "its certificate cannot be read") from exc


def _not_after(der: bytes) -> float:
    """The end of an X.509 certificate (RFC 5280, 4.1): Python's ssl tells it of peers alone."""
    _, certificate, _ = _element(der)
    _, signed, _ = _element(certificate)
    tag, _, rest = _element(signed)
    if tag == _TAG_VERSION:  # then the serial number follows; before version 2 it is the first
        _, _, rest = _element(rest)
    for _ in ("signature", "issuer"):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, rest = _element(validity)
    tag, told, _ = _element(rest)
    return datetime.strptime(told.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC).timestamp()


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """The first element's tag and content, and what follows it."""
    tag, length, start = der[0], der[1], 2
    if length >= 0x80:
        n_bytes = length & 0x7F
        length, start = int.from_bytes(der[2 : 2 + n_bytes]), 2 + n_bytes
    return tag, der[start : start + length], der[start + length :]


def _check_key(path: str) -> None:
    """Raises TlsRefused where everybody may read the key, or it is none."""
    text, mode = _text_and_mode(path)
    if "PRIVATE KEY-----" not in text:
        raise TlsRefused(path, "it holds no private key in PEM")
    if mode & 0o027:  # a group may read it: Debian's ssl-cert is made for that
        raise TlsRefused(path, f"its mode is {mode:04o}, so that others reach it; chmod 600 it")


def _text_and_mode(path: str) -> tuple[str, int]:
    """A file's characters and permissions. Raises TlsRefused."""
    try:
        with open(path, "rb", opener=open_at_once) as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise TlsRefused(path, "it is no file")
            data = stream.read(MAX_PEM_BYTES + 1)
    except OSError as exc:
        raise TlsRefused(path, exc.strerror or str(exc)) from exc
    if len(data) > MAX_PEM_BYTES:
        raise TlsRefused(path, f"it is longer than {MAX_PEM_BYTES} bytes")
    return data.decode("latin-1"), stat.S_IMODE(mode)
