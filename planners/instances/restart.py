"""When a child that died is started again: at once, then ever later, then only on trial.

closed ─ the strikes reach the limit → open for cooldown_s ─ over, and somebody waits → one trial
trial ─ an answer was served, or it lived for window_s → closed;  it died → open, twice as long
A pinned model is tried without anybody who waits, MOST_OWN_TRIALS times in a row.
"""

from msgspec import Struct
from msgspec.structs import replace

from planners.durations import format_duration

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
LONGEST_COOLDOWN_S = 900.0
MOST_OWN_TRIALS = 24  # of a pinned model, with nobody who waits: some five hours
_MOST_DOUBLINGS = 20  # beyond it the bounds are long reached

FULL = 1.0
HALF = 0.5  # a request that kills its child is sent once more: two deaths are one strike then


class Death(Struct, frozen=True):
    """An end that nobody wanted."""

    at_s: float
    """Monotonic."""
    lived_s: float | None
    """Since it was ready; None where it never was."""
    was_serving: bool
    """A request was under way, which may have been what killed it."""
    had_answered: bool
    """It had served an answer, so the model can run."""


class History(Struct, frozen=True):
    """What an instance's children died of late, and how the breaker stands."""

    deaths: tuple[Death, ...] = ()
    """Within the window, oldest first."""
    openings: int = 0
    """Of the breaker, one after another with no answer between them."""


class RestartRules(Struct, frozen=True):
    """`[fleet]`: how often is too often."""

    window_s: float
    limit: int
    """Strikes within the window that open the breaker."""
    cooldown_s: float
    """How long it stays open the first time."""


class RestartAt(Struct, frozen=True):
    """Start it again at `at_s` (monotonic)."""

    at_s: float


class OpenUntil(Struct, frozen=True):
    """It died too often: callers are refused until `at_s`, then one load is tried for them."""

    at_s: float
    deaths: int
    """Within the window."""


def strikes(death: Death) -> float:
    """What a death says against the model: most where it never became ready, least where it
    served answers before a request may have killed it.
    """
    if death.lived_s is None:
        return FULL
    return (HALF if death.was_serving else FULL) * (HALF if death.had_answered else FULL)


def after_death(
    history: History, death: Death, *, rules: RestartRules
) -> tuple[History, RestartAt | OpenUntil]:
    """The history with `death`, and what to do now."""
    since_s = death.at_s - rules.window_s
    recent = (*(d for d in history.deaths if since_s < d.at_s <= death.at_s), death)
    has_recovered = death.lived_s is not None and death.lived_s > rules.window_s
    openings = 0 if has_recovered else history.openings
    told = History(recent, openings)
    total = sum(map(strikes, recent))
    if not openings and total < rules.limit:
        return told, RestartAt(death.at_s + _delay_s(total))
    cooldown_s = min(LONGEST_COOLDOWN_S, rules.cooldown_s * 2 ** min(openings, _MOST_DOUBLINGS))
    open_until = OpenUntil(death.at_s + cooldown_s, deaths=len(recent))
    return replace(told, openings=openings + 1), open_until


def after_answer(history: History) -> History:
    """An answer was served: a breaker that was open is closed, and what opened it forgiven."""
    return History() if history.openings else history


def tries_by_itself(openings: int, *, is_pinned: bool) -> bool:
    """Whether a load is tried after the cooldown though nobody waits."""
    return is_pinned and 0 < openings <= MOST_OWN_TRIALS


def left_alone(verdict: OpenUntil, *, now_s: float, by_itself: bool) -> str:
    """When it is tried again, as a clause."""
    cooldown = format_duration(verdict.at_s - now_s)
    when = (
        f"is tried after {cooldown}, since it is pinned"
        if by_itself
        else f"is tried by the first request after {cooldown}"
    )
    return (
        f"it died {verdict.deaths} times of late, so the next load {when},"
        " or at once after inferenceosctl retry"
    )


def _delay_s(total: float) -> float:
    """0, 1, 2, 4 … 60 s for 1, 2, 3, 4 … strikes: after the first at once, callers are waiting."""
    if total <= FULL:
        return 0.0
    exponent = min(total - 2, _MOST_DOUBLINGS)
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**exponent))
