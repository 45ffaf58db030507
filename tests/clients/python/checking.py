"""Runs the checks of one client and prints a line for each; exits 1 where one fails.

Within the environment of `make clients`: of the daemon's own packages nothing is there.
"""

import sys
import time
import traceback
from collections.abc import Callable, Mapping

MODEL = "SmolLM2-135M-Instruct.Q4_1:latest"
HERMES = "hermes:latest"
"""The same weights under a template that knows tools."""
QUESTION = "What is the capital of Germany?"
CAPITAL = "Berlin"
N_TOKENS = 24
VERDICT = {
    "title": "Verdict",
    "description": "What is asked for as structured output.",
    "type": "object",
    "properties": {"verdict": {"type": "string", "enum": ["yes", "no"]}},
    "required": ["verdict"],
}
N_EMBD = 576


def check(client: str, checks: Mapping[str, Callable[[], None]]) -> None:
    """Ends the program with 1 where one raises."""
    n_failed = 0
    for name, run in checks.items():
        started_s = time.monotonic()
        try:
            run()
        except Exception:
            n_failed += 1
            reason = traceback.format_exc().strip()
            print(f"FAILED {client}: {name}\n{reason}", flush=True)
        else:
            took_s = time.monotonic() - started_s
            print(f"ok     {client}: {name} ({took_s:.1f} s)", flush=True)
    sys.exit(n_failed > 0)


def told(text: str) -> None:
    """Raises AssertionError unless it is an answer to QUESTION."""
    assert CAPITAL in text, text


def streamed(parts: list[str], whole: str) -> None:
    """Raises AssertionError unless `parts` came one by one, and are `whole` together."""
    assert len(parts) > 3, parts
    assert "".join(parts) == whole, (parts, whole)
