import pytest

from proxy.edge.heads import is_ambiguous

HOST = (b"host", b"localhost:11434")


def encoded(value: bytes) -> tuple[bytes, bytes]:
    return b"transfer-encoding", value


@pytest.mark.parametrize(
    ("version", "url", "headers"),
    [
        ("1.1", b"/", [HOST]),
        ("1.1", b"/", [HOST, encoded(b"chunked")]),
        ("1.1", b"/", [HOST, encoded(b" Chunked ")]),
        ("1.1", b"*", [HOST]),
        ("1.1", b"http://LOCALHOST:11434/api/version", [HOST]),
        ("1.1", b"http://localhost:11434?a=/b", [HOST]),
        ("1.0", b"/", []),
        ("0.9", b"/", []),
    ],
)
def test_what_all_read_alike_is_taken(
    version: str, url: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    assert not is_ambiguous(version, url, headers)


@pytest.mark.parametrize(
    ("version", "url", "headers"),
    [
        ("1.1", b"/", []),
        ("1.1", b"/", [HOST, HOST]),
        ("1.0", b"/", [HOST, HOST]),
        ("1.1", b"http://evil.example/", [HOST]),
        ("1.1", b"http://localhost:11434@evil.example/", [HOST]),
        ("1.1", b"http://localhost/", [HOST]),
        ("1.0", b"/", [HOST, encoded(b"chunked")]),
        ("1.1", b"/", [HOST, encoded(b"gzip, chunked")]),
        ("1.1", b"/", [HOST, encoded(b"")]),
    ],
    ids=[
        "no host",
        "two hosts",
        "two hosts of old",
        "another host in the address",
        "another host behind a user",
        "another port in the address",
        "chunks of old",
        "chunks within an encoding",
        "no encoding",
    ],
)
def test_what_others_might_read_otherwise_is_ambiguous(
    version: str, url: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    assert is_ambiguous(version, url, headers)
