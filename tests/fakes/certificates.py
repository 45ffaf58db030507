"""Certificates for tests, made by openssl, as an operator would make them."""

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str = "server", *, days: int = 1) -> tuple[Path, Path]:
    """A certificate of localhost and 127.0.0.1, signed by itself, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        *("req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-keyout", str(key), "-out", str(cert), "-days", str(days), "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
    )
    key.chmod(0o600)
    return cert, key


def with_password(key: Path) -> Path:
    """The same key, encrypted."""
    locked = key.with_suffix(".locked")
    _openssl("pkey", "-in", str(key), "-out", str(locked), "-aes256", "-passout", "pass:secret")
    locked.chmod(0o600)
    return locked


def _openssl(*args: str) -> None:
    subprocess.run(("openssl", *args), check=True, capture_output=True, timeout=30)
