"""A registry as a program: files below a folder by their paths, by ranges, at some 12 MB/s each.

python -m tests.fakes.file_registry FOLDER      prints its port
"""

import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PIECE_BYTES = 256 << 10
PAUSE_S = 0.02  # after each piece, on each connection


class Handler(BaseHTTPRequestHandler):
    """Answers with a file, or a part of it."""

    folder: Path
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.folder / self.path.lstrip("/")
        if ".." in self.path or not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        first, last = (int(asked[1]), int(asked[2])) if asked else (0, len(data) - 1)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        for at in range(first, last + 1, PIECE_BYTES):
            self.wfile.write(data[at : min(at + PIECE_BYTES, last + 1)])
            time.sleep(PAUSE_S)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests read what matters from the store."""


class Server(ThreadingHTTPServer):
    """Callers that are killed are no news."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: they are killed on purpose."""


def main() -> None:
    """Serve until killed."""
    Handler.folder = Path(sys.argv[1])
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
