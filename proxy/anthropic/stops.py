"""Stop sequences, found here: the child does not say which one it met."""

from collections.abc import Sequence


class StopSequences:
    """Passes a text on up to the first sequence in it, however the text is cut."""

    __slots__ = ("_held", "_sequences", "hit")

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = tuple(sequence for sequence in sequences if sequence)
        self._held = ""
        self.hit: str | None = None
        """The sequence that was met."""

    def take(self, text: str) -> str:
        """What may be told of all so far: nothing that may be the beginning of a sequence."""
        text = self._held + text
        places = [(at, told) for told in self._sequences if (at := text.find(told)) >= 0]
        if places:
            at, self.hit = min(places, key=lambda place: (place[0] + len(place[1]), place[0]))
            self._held = ""
            return text[:at]
        kept = max((_overlap(text, told) for told in self._sequences), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """The length of the longest end of `text` that `sequence` begins with."""
    longest = min(len(text), len(sequence) - 1)
    return next((n for n in range(longest, 0, -1) if sequence.startswith(text[-n:])), 0)
