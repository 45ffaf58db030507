"""Heads that two programs could read differently, which is how requests are smuggled. Pure."""

from collections.abc import Sequence

OLD_VERSIONS = ("0.9", "1.0")


def is_ambiguous(version: str, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """True where others may see another host or another end of the body (RFC 9112, 3.2 and 6.1).

    None or more than one Host; an address with a host of its own that is not Host's; chunks told by
    a caller that knows none, or within another encoding, which nobody here undoes.
    """
    hosts: list[bytes] = []
    for name, value in headers:
        if name == b"host":
            hosts.append(value)
        elif name == b"transfer-encoding" and (
            version in OLD_VERSIONS or value.strip().lower() != b"chunked"
        ):
            return True
    if len(hosts) > 1 or not (hosts or version in OLD_VERSIONS):
        return True
    if url.startswith((b"/", b"*")) or not hosts:
        return False
    return _authority(url) != hosts[0].strip().lower()


def _authority(url: bytes) -> bytes:
    """The host and port of an address in absolute form."""
    rest = url.partition(b"://")[2]
    return rest.partition(b"/")[0].partition(b"?")[0].lower()
