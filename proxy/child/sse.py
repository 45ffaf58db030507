"""Server-sent events as llama-server writes them: `data: JSON`, a blank line, `:` pings between."""

from proxy.errors import UpstreamBroken

EVENT_BYTES = 64 << 20  # the last event of /completion holds the whole prompt
DONE = b"[DONE]"
ERROR_HEAD = b'data: {"error":'
PROGRESS = b'"return_progress":true'
"""Asked of every child: one that writes while it reads a prompt notices that the caller left."""
IS_PROGRESS = b'"prompt_progress":'
"""Unmistakable: within a text its quotation marks are escaped."""
KEEP_ALIVE = b": the reply is still to come\n\n"
"""A comment, which readers of events pass over."""


class WholeEvents:
    """Passes a stream on in whole events, so that whatever follows one can be read.

    Children write whole events, so that as a rule nothing is held back and nothing copied.
    """

    __slots__ = ("_held", "_socket_path")

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._held = b""

    def take(self, chunk: bytes) -> bytes:
        """The events that `chunk` completes, as they stand. Raises UpstreamBroken."""
        if self._held:
            chunk = self._held + chunk
            self._held = b""
        if chunk.endswith(b"\n\n"):
            return chunk
        end = chunk.rfind(b"\n\n") + 2 if b"\n\n" in chunk else 0
        self._held = chunk[end:]
        if len(self._held) > EVENT_BYTES:
            raise UpstreamBroken(self._socket_path, f"an event is over {EVENT_BYTES} bytes")
        return chunk[:end]


def without_progress(events: bytes) -> bytes:
    """Those of whole events that are neither pings nor tell how far a prompt is read."""
    kept = [
        event
        for event in events.split(b"\n\n")
        if not event.startswith(b":") and IS_PROGRESS not in event
    ]
    return b"\n\n".join(kept)


def parted(events: bytes) -> tuple[bytes, bytes]:
    """Whole events up to the first that tells an error, and its payload; empty where none does.

    Unmistakable: within a text its quotation marks are escaped.
    """
    before, head, rest = events.partition(ERROR_HEAD)
    return before, head[6:] + rest.partition(b"\n")[0]


class EventReader:
    """Cuts a stream into the payloads of its events, however it was cut on the way."""

    __slots__ = ("_parts", "_size", "_socket_path")

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads that `chunk` completes, without comments. Raises UpstreamBroken."""
        parts = self._parts
        if not parts and chunk.startswith(b"data: ") and chunk.find(b"\n\n") == len(chunk) - 2:
            return [chunk[6:-2]]  # as nearly all: one event, whole
        if b"\n\n" not in chunk and not (
            parts and parts[-1].endswith(b"\n") and chunk.startswith(b"\n")
        ):
            self._size += len(chunk)
            if self._size > EVENT_BYTES:
                raise UpstreamBroken(self._socket_path, f"an event of over {EVENT_BYTES} bytes")
            parts.append(chunk)
            return []
        if parts:
            parts.append(chunk)
            chunk = b"".join(parts)
        *events, rest = chunk.split(b"\n\n")
        self._parts = [rest] if rest else []
        self._size = len(rest)
        return [event[6:] for event in events if event.startswith(b"data: ")]
