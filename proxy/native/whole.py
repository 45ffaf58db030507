"""One reply of /completion out of its stream, equal to what the child would have sent unstreamed.

Not for `return_tokens`: streams leave out the ids of tokens that end within a character.
"""

import msgspec

from planners.lessons.usage import Usage
from proxy.child.chunks import NULL, Event, JsonText, read_event
from proxy.child.timings import usage_in
from proxy.errors import StreamCut, UpstreamBroken


class _Event(Event):
    index: int = 0
    content: msgspec.Raw = NULL
    stop: bool = False
    stopping_word: str = ""
    completion_probabilities: list[msgspec.Raw] | None = None


_EVENT = msgspec.json.Decoder(_Event)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STREAMED, _UNSTREAMED = b'"stream":true', b'"stream":false'


class Whole:
    """Collects the events of one request, each prompt's apart."""

    def __init__(self, socket_path: str, *, n_prompts: int) -> None:
        self._socket_path = socket_path
        self.parts = tuple(Part() for _ in range(n_prompts))

    def add(self, event: bytes) -> None:
        """Takes one event's payload. Raises ChildFailed for an error event, UpstreamBroken."""
        told = read_event(event, _EVENT, self._socket_path)
        if not 0 <= told.index < len(self.parts):
            reason = f"an answer {told.index} that nobody asked for"
            raise UpstreamBroken(self._socket_path, reason)
        self.parts[told.index].add(told, event)

    def reply(self) -> bytes:
        """An object; of several prompts an array. Raises StreamCut where an end is missing."""
        if not all(part.last for part in self.parts):
            raise StreamCut(self._socket_path)
        replies = [part.reply() for part in self.parts]
        return msgspec.json.encode(replies[0] if len(replies) == 1 else replies)

    def usages(self) -> list[Usage]:
        """What each prompt's work took."""
        told = (usage_in(b"data: " + part.last) for part in self.parts)
        return [usage for usage in told if usage is not None]


class Part:
    """The answer to one prompt in the making."""

    __slots__ = ("last", "probabilities", "stopping_word", "text")

    def __init__(self) -> None:
        self.text = JsonText()
        self.probabilities: list[msgspec.Raw] = []
        self.stopping_word = ""
        self.last = b""
        """The event that ended it."""

    def add(self, told: _Event, event: bytes) -> None:
        """Takes a piece of it, or its end."""
        self.text.add(told.content)
        self.probabilities += told.completion_probabilities or ()
        if told.stop:
            self.stopping_word, self.last = told.stopping_word, event

    def drop_probabilities(self, n: int) -> None:
        """Leaves out those of the last n tokens: a stream tells them of a stop word too."""
        del self.probabilities[max(0, len(self.probabilities) - n) :]

    def reply(self) -> dict[str, object]:
        """As the child words it."""
        members: dict[str, object] = {**_MEMBERS.decode(self.last)}
        members["content"] = self.text.joined()
        settings = members.get("generation_settings")
        if isinstance(settings, msgspec.Raw):
            told = bytes(settings).replace(_STREAMED, _UNSTREAMED, 1)
            members["generation_settings"] = msgspec.Raw(told)
        if self.probabilities:
            members["completion_probabilities"] = self.probabilities
        return members
