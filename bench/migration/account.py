"""What became of the streams of a campaign: a line of a ledger for each round, and their sum."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

FAULTS = (
    "failed", "silent", "differing", "broken", "misframed", "miscounted", "lost_caches",
)  # fmt: skip
SHOWN = 10  # of what was not as it should be


class Round(msgspec.Struct, frozen=True):
    """What one move, or one kill, came to."""

    what: str
    seed: int
    number: int
    streams: int
    ways: dict[str, int] = msgspec.field(default_factory=dict)
    """How streams went on that were hit, by their way: each at most once in a round."""
    failed: tuple[str, ...] = ()
    """Each with the error that its caller got."""
    silent: tuple[str, ...] = ()
    """Ended without a word."""
    differing: tuple[str, ...] = ()
    """Each that came to other words, with both."""
    broken: tuple[str, ...] = ()
    """The same, of texts whose characters are of many tokens: of those it is known."""
    misframed: tuple[str, ...] = ()
    """Whose words are the same, but not the reason of its end, its tokens, ids or roles."""
    miscounted: tuple[str, ...] = ()
    """Written by two kinds of math, and not of as many tokens as they say."""
    lost_caches: tuple[str, ...] = ()
    """Conversations that were idle, and were read again."""
    pauses_s: tuple[float, ...] = ()
    """From the loss to the first new part, of each stream that was hit, as the daemon tells."""
    gaps_s: tuple[float, ...] = ()
    """The longest between two pieces of each of these, as its caller saw."""
    move_s: float | None = None

    @property
    def hit(self) -> int:
        """Streams that went on in another process."""
        return sum(self.ways.values())


_ROUND = msgspec.json.Decoder(Round)


def read_ledger(path: Path, what: str, seed: int) -> list[Round]:
    """Rounds that are done; a line that was cut short is not one."""
    if not path.exists():
        return []
    rounds = []
    for line in path.read_bytes().splitlines():
        try:
            told = _ROUND.decode(line)
        except msgspec.DecodeError:
            continue
        if (told.what, told.seed) == (what, seed):
            rounds.append(told)
    return rounds


def write_ledger(path: Path, done: Round) -> None:
    """One more round."""
    with path.open("ab") as ledger:
        ledger.write(msgspec.json.encode(done) + b"\n")


class Account(msgspec.Struct, frozen=True):
    """The sum of a campaign's rounds."""

    what: str
    rounds: tuple[Round, ...]
    keeps_math: bool = True
    """Whether each stream is to come to the words of the undisturbed one."""

    @property
    def streams(self) -> int:
        """All, also those that ended before the move or began after it."""
        return sum(each.streams for each in self.rounds)

    @property
    def hit(self) -> int:
        """Those that went on in another process."""
        return sum(each.hit for each in self.rounds)

    @property
    def is_good(self) -> bool:
        """None failed or ended silently, none is in pieces, and 99 of 100 are byte for byte."""
        wrong = self._all("failed", "silent", "misframed", "miscounted", "lost_caches")
        differing = len(self._all("differing"))
        return not wrong and (not self.keeps_math or differing <= 0.01 * max(1, self.hit))

    def _all(self, *names: str) -> list[str]:
        return [told for name in names for each in self.rounds for told in getattr(each, name)]

    def bar(self, due: int) -> str:
        """What was promised of it, and whether that holds, in a line."""
        hit, differing = max(1, self.hit), len(self._all("differing"))
        pieces = len(self._all("misframed", "miscounted"))
        told = [
            f"{self.hit} of {due} streams hit in {len(self.rounds)} rounds",
            f"{len(self._all('failed'))} failed, {len(self._all('silent'))} ended silently (0)",
            f"{pieces} in pieces or miscounted (0)",
        ]
        if self.keeps_math:
            told.append(f"{100 * (hit - differing) / hit:.1f} % byte for byte (99 at least)")
        if lost := len(self._all("lost_caches")):
            told.append(f"{lost} idle conversations read again (0)")
        return f"{verdict(self.is_good and self.hit >= due)} {self.what}: {', '.join(told)}"

    def text(self) -> str:
        """A few lines for people, and one for each stream that was not as it should be."""
        ways: Counter[str] = Counter()
        for each in self.rounds:
            ways.update(each.ways)
        told = ", ".join(f"{n} {way}" for way, n in ways.most_common())
        counts = [
            f"{len(self._all('failed'))} failed",
            f"{len(self._all('silent'))} silent ends",
            f"{len(self._all('differing'))} in other words"
            + ("" if self.keeps_math else " (not compared: the math is another)"),
            f"{len(self._all('broken'))} more of broken characters",
            f"{len(self._all('misframed'))} misframed",
            f"{len(self._all('miscounted'))} with characters lost or twice",
            f"{len(self._all('lost_caches'))} idle conversations read again",
        ]
        lines = [
            f"{self.what}: {len(self.rounds)} rounds, {self.streams} streams, {self.hit} hit"
            f" ({told}): {', '.join(counts)}",
            *_spread("gap", (g for each in self.rounds for g in each.gaps_s)),
            *_spread("pause", (p for each in self.rounds for p in each.pauses_s)),
            *_spread("move", (m for each in self.rounds if (m := each.move_s) is not None)),
        ]
        for name in FAULTS:
            lines += [f"  {name}: {line}" for line in self._all(name)[:SHOWN]]
        return "\n".join(lines)


def verdict(holds: bool) -> str:
    """What a bar's line begins with."""
    return "PASS" if holds else "FAIL"


def _spread(name: str, values_s: Iterable[float]) -> list[str]:
    """Their middle and their upper end; nothing where there is none."""
    ranked = sorted(values_s)
    if not ranked:
        return []
    p95 = ranked[int(0.95 * (len(ranked) - 1))]
    return [f"  {name} p50 {median(ranked):.2f} s, p95 {p95:.2f} s, most {ranked[-1]:.2f} s"]
