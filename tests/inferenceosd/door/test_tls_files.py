import os
import shutil
import ssl
import time
from pathlib import Path

import pytest

from inferenceosd.door.tls_files import TlsFiles, TlsRefused, expiry_of
from tests.fakes.certificates import certificate, with_password

DAY_S = 24 * 3600.0


@pytest.mark.parametrize("days", [1, 90, 36500], ids=["a day", "a quarter", "a century"])
def test_when_a_certificate_ends_is_told(tmp_path: Path, days: int) -> None:
    cert, key = certificate(tmp_path, days=days)

    left_s = TlsFiles(str(cert), str(key)).expires_at - time.time()

    assert left_s == pytest.approx(days * DAY_S, abs=60)


def test_the_first_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    leaf, _ = certificate(tmp_path, "leaf", days=2)
    ca, _ = certificate(tmp_path, "ca", days=900)
    chain = tmp_path / "chain.pem"
    chain.write_text(f"a comment\n{leaf.read_text()}{ca.read_text()}")

    assert expiry_of(str(chain)) == expiry_of(str(leaf))


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path, "one")
    _, key = certificate(tmp_path, "two")

    with pytest.raises(TlsRefused, match=r"two\.key: it is no key of .*one\.pem"):
        TlsFiles(str(cert), str(key))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    with pytest.raises(TlsRefused, match="has a password"):
        TlsFiles(str(cert), str(with_password(key)))


@pytest.mark.parametrize(("mode", "is_right"), [(0o600, True), (0o640, True), (0o644, False)])
def test_a_key_that_everybody_reads_is_refused(tmp_path: Path, mode: int, is_right: bool) -> None:
    cert, key = certificate(tmp_path)
    key.chmod(mode)

    if is_right:
        TlsFiles(str(cert), str(key))
    else:
        with pytest.raises(TlsRefused, match="chmod 600"):
            TlsFiles(str(cert), str(key))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no PEM",
        f"{ssl.PEM_HEADER}\nMAA=\n{ssl.PEM_FOOTER}",
        f"{ssl.PEM_HEADER}\n!!!\n{ssl.PEM_FOOTER}",
        f"{ssl.PEM_FOOTER}\n{ssl.PEM_HEADER}",
        "x" * (2 << 20),
    ],
    ids=["empty", "text", "no certificate", "no base64", "end first", "too long"],
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, text: str) -> None:
    cert, key = certificate(tmp_path)
    cert.write_text(text)

    with pytest.raises(TlsRefused, match=r"server\.pem"):
        TlsFiles(str(cert), str(key))


@pytest.mark.parametrize("kind", ["nothing", "folder", "pipe", "no key"])
def test_what_is_no_key_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    cert, key = certificate(tmp_path)
    key.unlink()
    if kind == "folder":
        key.mkdir()
    elif kind == "pipe":
        os.mkfifo(key)
    elif kind == "no key":
        shutil.copy(cert, key)

    with pytest.raises(TlsRefused, match=r"server\.key"):
        TlsFiles(str(cert), str(key))
