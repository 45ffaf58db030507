"""`inferenceosctl pull --fit`: which file of a repository the planner chooses. Imported late."""

import sys
from typing import TextIO

from inferenceosd.commands.admin_client import EXIT_FAILED, Door
from inferenceosd.commands.fit_text import fit_text
from inferenceosd.commands.plan_question import recorded_machine
from proxy.admin.fit import FitReport

FIT_S = 600.0  # headers come from afar, and each file is planned


def choose(
    door: Door, repository: str, *, context: int | None, machine: TextIO | None, as_json: bool
) -> str:
    """Show how its files would run; the name of the first. Ends the program where none fits."""
    asked = {
        "model": repository,
        "context": context,
        "hardware": None if machine is None else recorded_machine(machine),
    }
    answer = door.post("/fit", FitReport, body=asked, within_s=FIT_S)
    answer.show(fit_text, as_json=as_json)
    if answer.value.pick is None:
        sys.exit(EXIT_FAILED)
    return answer.value.pick
