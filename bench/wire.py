"""A client that costs next to nothing: one blocking socket, clocked at the first byte."""

import socket
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, as the client saw it."""

    first_byte_s: float
    total_s: float
    body: bytes


class Wire:
    """A new connection per request, over TCP ("127.0.0.1:80") or a Unix socket ("/run/a.sock").

    Not kept alive: llama-server hangs up after streams, and connecting is not what is clocked.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def _connect(self) -> None:
        if self._address.startswith("/"):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(self._address)
        else:
            host, _, port = self._address.rpartition(":")
            self._socket = socket.create_connection((host, int(port)))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(60)
        self._reader = self._socket.makefile("rb", buffering=1 << 16)

    def post(self, path: str, body: bytes) -> Exchange:
        """Send a JSON body, read the whole reply. Raises ValueError on any status but 200."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._connect()
        with self._socket, self._reader:
            began_s = perf_counter()
            self._socket.sendall(head.encode() + body)
            status = self._reader.readline()
            first_byte_s = perf_counter() - began_s
            reply = self._body(self._headers())
            total_s = perf_counter() - began_s
        if b" 200 " not in status:
            raise ValueError(f"{path} answered {status!r}: {reply[:200]!r}")
        return Exchange(first_byte_s, total_s, reply)

    def _headers(self) -> dict[bytes, bytes]:
        headers = {}
        while (line := self._reader.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return headers

    def _body(self, headers: dict[bytes, bytes]) -> bytes:
        if headers.get(b"transfer-encoding") != b"chunked":
            whole: bytes = self._reader.read(int(headers[b"content-length"]))
            return whole
        parts: list[bytes] = []
        while size := int(self._reader.readline(), 16):
            parts.append(self._reader.read(size))
            self._reader.readline()
        self._reader.readline()
        return b"".join(parts)
