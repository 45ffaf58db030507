"""What `inferenceosctl plan` asks: of the daemon, or, where models are files, by planning here."""

from collections.abc import Callable
from functools import partial
from typing import TextIO, TypeVar

import msgspec

from inferenceosd.commands import offline
from inferenceosd.commands.admin_client import WORK_S, Answer, Door, fail
from inferenceosd.commands.plan_text import plan_text, plans_text
from inferenceosd.settings.error import ConfigError
from planners.errors import PlanError
from planners.profile_json import MAX_CHARS, decode_profile
from proxy.admin.plan import PlanReport, PlansReport
from supervisor.errors import SupervisorError

T = TypeVar("T")


class PlanQuestion(msgspec.Struct, frozen=True):
    """What `plan` was asked for."""

    models: tuple[str, ...]
    context: int | None
    parallel: int | None
    machine: str | None

    def of_daemon(self, door: Door, *, as_json: bool) -> bool:
        """Show how the daemon would launch them; whether all fit."""
        asked = {"context": self.context, "parallel": self.parallel, "hardware": self.machine}
        if len(self.models) == 1:
            body = {"model": self.models[0], **asked}
            return _show_plan(door.post("/plan", PlanReport, body=body, within_s=WORK_S), as_json)
        bodies = {"models": self.models, **asked}
        return _show_plans(door.post("/plans", PlansReport, body=bodies, within_s=WORK_S), as_json)

    def of_files(self, *, as_json: bool) -> bool:
        """Show how files would be launched; whether all fit."""
        if len(self.models) == 1:
            told = found_here(partial(self._planned, offline.plan_file, self.models[0]))
            return _show_plan(Answer(msgspec.json.encode(told), told), as_json)
        all_told = found_here(partial(self._planned, offline.plan_files, self.models))
        return _show_plans(Answer(msgspec.json.encode(all_told), all_told), as_json)

    def _planned(self, plan: Callable[..., T], asked: str | tuple[str, ...]) -> T:
        return plan(asked, context=self.context, parallel=self.parallel, hardware=self.machine)


def _show_plan(answer: Answer[PlanReport], as_json: bool) -> bool:
    answer.show(plan_text, as_json=as_json)
    return answer.value.plan is not None


def _show_plans(answer: Answer[PlansReport], as_json: bool) -> bool:
    answer.show(plans_text, as_json=as_json)
    return answer.value.fits


def recorded_machine(file: TextIO) -> str:
    """The text of a recorded machine; ends the program where it is none."""
    try:
        text = file.read(MAX_CHARS + 1)
        decode_profile(text)
    except (PlanError, OSError, UnicodeDecodeError) as exc:
        fail(f"{file.name}: {exc}")
    return text


def found_here(work: Callable[[], T]) -> T:
    """What we find out by ourselves; ends the program with the sentence of what went wrong."""
    try:
        return work()
    except (ConfigError, PlanError, SupervisorError) as exc:
        fail(str(exc))
