"""What `inferenceosctl doctor` prints: a line per check, and below it how to mend. Pure."""

from collections.abc import Sequence

from inferenceosd.commands.doctor import Check, Verdict

_MARKS = {Verdict.PASS: "pass", Verdict.WARN: "WARN", Verdict.FAIL: "FAIL"}


def doctor_text(found: Sequence[Check]) -> str:
    """All checks, then how many failed."""
    width = max((len(check.name) for check in found), default=0)
    lines = []
    for check in found:
        lines.append(f"{_MARKS[check.verdict]}  {check.name.ljust(width)}  {check.sentence}")
        if check.remedy:
            lines.append(f"{' ' * (width + 8)}→ {check.remedy}")
    return "\n".join([*lines, "", _summary(found)])


def _summary(found: Sequence[Check]) -> str:
    failed = sum(check.verdict is Verdict.FAIL for check in found)
    warned = sum(check.verdict is Verdict.WARN for check in found)
    if failed:
        return f"{failed} of {len(found)} checks failed"
    return f"nothing failed in {len(found)} checks" + (f", {warned} warned" if warned else "")
