"""What became of every request of a soak, and whether that is good enough. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How one request ended, as its caller saw it."""

    RIGHT = "answered, and as alone on an idle machine"
    LEFT = "left by its caller"
    TOLD = "cut by a disturbance, and told so in its dialect"
    WRONG = "answered with another text than alone"
    LOST = "neither answered nor told why"
    REFUSED = "refused though nothing disturbed it"


MOST_TOLD = 20  # of what must not be
FORBIDDEN = (Outcome.WRONG, Outcome.LOST, Outcome.REFUSED)


@dataclass(frozen=True, slots=True)
class Ended:
    """One request that is over."""

    outcome: Outcome
    model: str
    dialect: str
    began_s: float
    ended_s: float
    note: str = ""
    """What its caller was told, or got in place of the right text."""

    def text(self) -> str:
        """Who asked, when, and what came of it."""
        when = f"from {self.began_s:.2f} to {self.ended_s:.2f} s"
        return f"{self.model} {self.dialect} {when}: {self.note}"


@dataclass(frozen=True, slots=True)
class Account:
    """All that a soak saw."""

    seed: int
    seconds: float
    requests: Sequence[Ended]
    disturbances: Counter[str]
    leaks: Sequence[str]

    @property
    def is_good(self) -> bool:
        """True without a lost, wrong or refused answer, and without a leak."""
        return not self.leaks and not any(r.outcome in FORBIDDEN for r in self.requests)

    def text(self) -> str:
        """For people: the counts, then everything that must not be."""
        outcomes = Counter(request.outcome for request in self.requests)
        lines = [f"{len(self.requests)} requests in {self.seconds:.0f} s, seed {self.seed}"]
        lines += [f"  {outcomes[outcome]:>6}  {outcome.value}" for outcome in Outcome]
        lines += [f"{self.disturbances.total()} disturbances"]
        lines += [f"  {n:>6}  {name}" for name, n in sorted(self.disturbances.items())]
        lines += [f"{len(self.leaks)} leaks", *(f"          {leak}" for leak in self.leaks)]
        bad = [request for request in self.requests if request.outcome in FORBIDDEN]
        lines += [f"{r.outcome.name}: {r.text()}" for r in bad[:MOST_TOLD]]
        return "\n".join((*lines, "good" if self.is_good else "NOT good"))
