"""What the launches of one instance died of, one after another, and what follows for the next.

Decides, and acts on nothing: the instance enters the state that it is told.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from planners.hardware import DeviceId
from planners.instances.exits import OUT_OF_MEMORY, Cause, ExitKind, is_hopeless
from planners.instances.ladder import MUTE, Rung, next_rung
from planners.instances.last_rung import OOM_RETRY_S
from planners.instances.restart import (
    Death,
    History,
    RestartAt,
    RestartRules,
    after_answer,
    after_death,
    left_alone,
    tries_by_itself,
)
from planners.plan import LaunchPlan
from planners.view import InstanceState

CAUSE_LINES = 20  # of log that a cause keeps, the last
ENGINE_RETRY_S = 10.0  # an upgrade that lasts longer than the first tries is over by then
MUTE_ENDS = 2  # loads; after the second one the next asks for less


class Setback(Struct, frozen=True):
    """Where an end that nobody wanted leaves the instance."""

    state: InstanceState
    """BACKOFF or FAILED."""
    cause: Cause
    """With what follows in its summary."""
    reason: str
    """For the event."""
    retry_at_s: float | None = None
    """Monotonic; None where only another file or other settings help."""
    deaths: int | None = None
    """Of late, where they opened the breaker."""


class Setbacks:
    """The ladder that launches climb down, and the breaker that opens."""

    def __init__(self, rung: Rung) -> None:
        self.rung = rung
        """What the next launch must do without."""
        self._history = History()
        self._out_of_memory = 0  # launches that died of it, one after another
        self._mute_ends = 0  # loads that ended without a word, one after another

    @property
    def openings(self) -> int:
        """Of the breaker, one after another with no answer between them."""
        return self._history.openings

    def got_ready(self) -> None:
        """A load succeeded."""
        self._out_of_memory = self._mute_ends = 0

    def answered(self) -> None:
        """A request was answered."""
        if self._history.openings:  # as hardly ever, and this is asked of every answer
            self._history = after_answer(self._history)

    def after(
        self,
        cause: Cause,
        death: Death,
        *,
        plan: LaunchPlan,
        room_bytes: Mapping[DeviceId, int],
        rules: RestartRules,
        is_pinned: bool,
    ) -> Setback:
        """BACKOFF, or FAILED when trying again is hopeless, or not yet due.

        A load that dies of memory is no strike: it says nothing against the model. The next one
        asks for less at once; where there is no less, it waits for its own time.
        """
        is_load = death.lived_s is None
        below = self._climbed_down(cause, plan, room_bytes=room_bytes, is_load=is_load)
        without = () if below is None else (reason.text for reason in below.reasons())
        why = "; ".join((cause.summary, *without))
        told = replace(cause, summary=why, log_tail=cause.log_tail[-CAUSE_LINES:])
        if cause.kind in OUT_OF_MEMORY and is_load:
            if below is not None:
                return Setback(InstanceState.BACKOFF, told, why, death.at_s)
            retry_at_s = death.at_s + OOM_RETRY_S
            return Setback(InstanceState.FAILED, told, cause.summary, retry_at_s)
        if is_hopeless(cause.kind, had_answered=death.had_answered):
            return Setback(InstanceState.FAILED, told, cause.summary)
        return self._backed_off(told, death, rules=rules, is_pinned=is_pinned)

    def _climbed_down(
        self,
        cause: Cause,
        plan: LaunchPlan,
        *,
        room_bytes: Mapping[DeviceId, int],
        is_load: bool,
    ) -> Rung | None:
        """What the next launch must do without, where this one died of memory.

        A load that ends without a word may have; one that does so again is taken to.
        """
        if cause.kind in MUTE:
            is_load = is_load and cause.returncode not in (None, 0)  # 0 is an end of its own will
            self._mute_ends += is_load
            if not is_load or self._mute_ends < MUTE_ENDS:
                return None
        below = next_rung(self.rung, plan, cause, room_bytes=room_bytes, tries=self._out_of_memory)
        if below is not None:
            self.rung, self._out_of_memory = below, self._out_of_memory + 1
        return below

    def _backed_off(
        self, cause: Cause, death: Death, *, rules: RestartRules, is_pinned: bool
    ) -> Setback:
        self._history, verdict = after_death(self._history, death, rules=rules)
        if isinstance(verdict, RestartAt):
            return Setback(InstanceState.BACKOFF, cause, cause.summary, verdict.at_s)
        if cause.kind is ExitKind.MISSING_ENGINE:  # to try costs nothing, and it may be back
            verdict = replace(verdict, at_s=min(verdict.at_s, death.at_s + ENGINE_RETRY_S))
        by_itself = tries_by_itself(self.openings, is_pinned=is_pinned)
        when = left_alone(verdict, now_s=death.at_s, by_itself=by_itself)
        told = replace(cause, summary=f"{cause.summary}; {when}")
        return Setback(InstanceState.FAILED, told, told.summary, verdict.at_s, verdict.deaths)
