"""What a child's work took, by its own word: tokens and seconds, in events and whole replies."""

from collections.abc import Iterable

import msgspec

from planners.lessons.usage import Usage


class Timings(msgspec.Struct):
    """What a child says its work took."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    cache_n: int = 0

    def usage(self) -> Usage:
        """The same, as the fleet keeps it."""
        return Usage(
            prompt_tokens=self.prompt_n,
            prompt_s=self.prompt_ms / 1000,
            decode_tokens=self.predicted_n,
            decode_s=self.predicted_ms / 1000,
        )


def sum_of(parts: Iterable[Timings]) -> Timings:
    """What several pieces of work took together."""
    total = Timings()
    for part in parts:
        total.prompt_n += part.prompt_n
        total.prompt_ms += part.prompt_ms
        total.predicted_n += part.predicted_n
        total.predicted_ms += part.predicted_ms
        total.cache_n += part.cache_n
    return total


class _Timed(msgspec.Struct):
    timings: Timings | None = None


_NAME = b'"timings":'
_TIMED = msgspec.json.Decoder(_Timed)


def usage_in(tail: bytes) -> Usage | None:
    """What the last event with timings in the end of a stream says; None where none does."""
    end = len(tail)
    while (at := tail.rfind(_NAME, 0, end)) >= 0:
        before, after = tail.rfind(b"\n\n", 0, at), tail.find(b"\n\n", at)
        end = before + 2 if before >= 0 else 0
        start = tail.find(b"data: ", end, at)
        if start >= 0:
            return usage_of(tail[start + 6 : after if after >= 0 else len(tail)])
    return None


def usage_of(told: bytes) -> Usage | None:
    """What an object says that its work took; None where it does not say."""
    try:
        timings = _TIMED.decode(told).timings
    except msgspec.DecodeError:
        return None
    return timings.usage() if timings is not None else None


def usages_in(events: bytes) -> list[Usage]:
    """What each event with timings says."""
    told = (usage_in(event) for event in events.split(b"\n\n"))
    return [usage for usage in told if usage is not None]


def usage_sum(usages: list[Usage]) -> Usage:
    """What several prompts of one request took together."""
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        prompt_s=sum(usage.prompt_s for usage in usages),
        decode_tokens=sum(usage.decode_tokens for usage in usages),
        decode_s=sum(usage.decode_s for usage in usages),
    )
