import pytest

from planners.argv import child_argv
from planners.layout.overruling import overruling
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from planners.reasons import ReasonKind
from tests.fakes.machines import CUDA, RULES, machine, nvidia, served

OWN = ("--model", "--alias", "--host", "--slot-save-path", "--ctx-size", "--parallel")
"""Refused by the configuration, or of no weight in a plan."""
WITHOUT_WEIGHT = ("--sse-ping-interval", "--verbosity", "--offline", "--jinja")


def plan_with(*flags: str) -> LaunchPlan:
    plan = plan_launch(
        served(flags=flags),
        hardware=machine(nvidia(0, 24.0), nvidia(1, 6.0)),
        engines=(CUDA,),
        rules=RULES,
        promised={},
    )
    assert isinstance(plan, LaunchPlan)
    return plan


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("-ngl", "5", "--device", "none"), ("-ngl", "--device")),
        (("--cache-type-k=q8_0", "-ctv", "q8_0"), ("--cache-type-k", "-ctv")),
        (("-ts", "1,1", "-ts", "2,1"), ("-ts",)),
        (("--no-mmap", "--top-k", "3"), ("--no-mmap",)),
        (("--mlock", "--top-k", "3"), ()),
    ],
    ids=" ".join,
)
def test_flags_that_decide_what_the_plan_decides_are_found(
    flags: tuple[str, ...], named: tuple[str, ...]
) -> None:
    assert overruling(flags) == named


def test_a_plan_says_which_of_the_models_flags_overrule_it() -> None:
    (reason,) = [r for r in plan_with("-ngl", "5").reasons if r.kind is ReasonKind.FLAGS]

    assert reason.text == (
        "its own flags have the last word over what is planned here: -ngl; what they change of"
        " places, memory and speed is not planned, only learned"
    )


def test_a_plan_that_no_flag_overrules_says_nothing_of_flags() -> None:
    reasons = plan_with("--top-k", "3").reasons

    assert not [reason for reason in reasons if reason.kind is ReasonKind.FLAGS]


def test_every_option_that_a_plan_decides_is_one_that_flags_can_overrule() -> None:
    argv = child_argv(plan_with(), engine=CUDA, socket_path="s", slot_dir="d")
    options = [part for part in argv if part.startswith("--")]

    assert [o for o in options if not overruling([o])] == [
        option for option in options if option in (*OWN, *WITHOUT_WEIGHT)
    ]
