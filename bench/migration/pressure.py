"""Somebody else's memory in waves, for five minutes: `python -m bench.migration.pressure`.

The daemon, its three models and the program that makes waves share a control group of GROUP_BYTES,
which all three models and a wave together exceed: who does not give way in time is killed. Callers
stream from one model without a break, and from the others now and then; each is to have its answer.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import httpx

from bench.migration.memory_group import MemoryGroup, NoGroup, memory_group
from bench.migration.questions import drawn
from bench.migration.streams import Ended, ended
from planners.pressure import DEFAULT_RULES
from planners.sizes import GIB, MIB, format_size
from scripts.started_daemon import StartedDaemon, started_daemon
from supervisor.engines.quickstart import quickstart_model_dir

GROUP_BYTES = 3 * GIB
PEAK_BYTES = 2400 * MIB
MODELS = {"busy": 3072, "second": 4096, "third": 5120}  # by name, with their contexts
N_TOKENS = 64
PAUSE_S = (0.5, 8.0)  # of those who ask now and then
LOOK_S = 0.2  # cadence of looking at the memory


@dataclass(frozen=True, slots=True)
class Account:
    """What came of it."""

    seconds: float
    seed: int
    n_waves: int
    answered: int
    lost: tuple[str, ...]
    """Each with the error that its caller got, or where it ended without a word."""
    oom_kills: int
    deaths: tuple[str, ...]
    """Of children, unasked."""
    events: Counter[str]
    least_free_bytes: int

    @property
    def answers_bound(self) -> int:
        """As many answers to pressure as the rest between two of them allows."""
        return 1 + int(self.seconds / DEFAULT_RULES.cooldown_s)

    @property
    def lifts_bound(self) -> int:
        """One upward move of each model within its own rest."""
        return len(MODELS) * (1 + int(self.seconds / DEFAULT_RULES.rise_cooldown_s))

    @property
    def is_good(self) -> bool:
        """No OOM, nobody without an answer, no more moves than the bound."""
        is_calm = (
            self.events["pressure.relieved"] <= self.answers_bound
            and self.events["pressure.lifted"] <= self.lifts_bound
        )
        return is_calm and not (self.lost or self.oom_kills or self.deaths)

    def text(self) -> str:
        """A few lines for people."""
        lines = [
            f"pressure: {self.seconds:.0f} s, seed {self.seed}, {self.n_waves} whole waves of up to"
            f" {format_size(PEAK_BYTES)} in {format_size(GROUP_BYTES)}, least free"
            f" {format_size(max(0, self.least_free_bytes))}",
            f"  {self.answered} answered, {len(self.lost)} lost; {self.oom_kills} OOM kills,"
            f" {len(self.deaths)} children died",
            f"  answers {self.events['pressure.relieved']} (at most {self.answers_bound}), moves up"
            f" {self.events['pressure.lifted']} (at most {self.lifts_bound}), moves begun"
            f" {self.events['migration.begun']}, loads {self.events['instance.loaded']}",
        ]
        lines += [f"  lost: {told}" for told in self.lost[:10]]
        lines += [f"  died: {told}" for told in self.deaths[:10]]
        return "\n".join(lines)


def main() -> None:
    """Parse, run, print; exit status 1 where the account is not good."""
    parser = argparse.ArgumentParser(prog="bench.migration.pressure", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long (300)")
    parser.add_argument("--seed", type=int, default=1, help="of waves and callers (1)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep the daemon's log there")
    asked = parser.parse_args()
    try:
        account = measured(seconds=asked.seconds, seed=asked.seed, log_to=asked.log)
    except NoGroup as exc:
        sys.exit(f"pressure: {NoGroup.__doc__} {exc}")
    print(account.text())
    sys.exit(not account.is_good)


def measured(*, seconds: float, seed: int, log_to: Path | None = None) -> Account:
    """Waves and callers for so long. Raises NoGroup."""
    with (
        tempfile.TemporaryDirectory(prefix="ios-bench-") as folder,
        memory_group(GROUP_BYTES) as group,
    ):
        with group.inside():
            daemon_of = started_daemon(Path(folder), model_dirs=(), config=config_text())
            daemon = daemon_of.__enter__()
        try:
            daemon.wait_for_engines()
            return _played(daemon, group, seconds=seconds, seed=seed)
        finally:
            if log_to is not None:
                log_to.write_text(daemon.log())
            daemon_of.__exit__(None, None, None)


def config_text() -> str:
    """Three models of one file."""
    model_dir = quickstart_model_dir()
    assert model_dir is not None, "make installs the quickstart model first"
    (model,) = model_dir.glob("*.gguf")
    return '[memory]\nreserve = "256MiB"\n' + "".join(
        f'[[model]]\nname = "{name}"\npath = "{model}"\ncontext = {context}\nparallel = 2\n'
        for name, context in MODELS.items()
    )


def _played(daemon: StartedDaemon, group: MemoryGroup, *, seconds: float, seed: int) -> Account:
    chance = random.Random(seed)
    for name in MODELS:
        told = daemon.ctl("load", name)
        assert told.returncode == 0, told.stderr
    began_s = time.monotonic()
    over = Event()
    with ThreadPoolExecutor(len(MODELS) + 1) as threads:
        callers = [
            threads.submit(_asked, daemon.base, name, random.Random(chance.random()), over)
            for name in MODELS
        ]
        least = threads.submit(_least_free, group, over)
        try:
            n_waves = _waves(group, seconds=seconds, seed=seed)
        finally:
            over.set()
        heard = [one for caller in callers for one in caller.result(600)]
        least_free_bytes = least.result()
    took_s = time.monotonic() - began_s
    return _account(
        daemon, group, heard, seconds=took_s, seed=seed, n_waves=n_waves,
        least_free_bytes=least_free_bytes,
    )  # fmt: skip


def _waves(group: MemoryGroup, *, seconds: float, seed: int) -> int:
    """Runs the program in the group; how many waves it made."""
    argv = [
        *(sys.executable, "-m", "bench.migration.waves", "--peak", str(PEAK_BYTES)),
        *("--seconds", str(seconds), "--seed", str(seed)),
    ]
    with group.inside():
        program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        told, _ = program.communicate(timeout=seconds + 60)
    finally:
        program.kill()
        program.wait()
    return len(told.splitlines())


def _asked(base: str, model: str, chance: random.Random, over: Event) -> list[tuple[str, Ended]]:
    heard = []
    while not over.is_set():
        question = drawn(chance, with_others=False)
        told = ended(base, model, question, n_tokens=N_TOKENS)
        heard.append((f"{model} {question.path}", told))
        if model != "busy":
            over.wait(chance.uniform(*PAUSE_S))
    return heard


def _least_free(group: MemoryGroup, over: Event) -> int:
    least = GROUP_BYTES
    while not over.wait(LOOK_S):
        least = min(least, GROUP_BYTES - group.used_bytes)
    return least


def _account(
    daemon: StartedDaemon,
    group: MemoryGroup,
    heard: list[tuple[str, Ended]],
    *,
    seconds: float,
    seed: int,
    n_waves: int,
    least_free_bytes: int,
) -> Account:
    transport = httpx.HTTPTransport(uds=str(daemon.admin_socket))
    with httpx.Client(transport=transport, base_url="http://admin", timeout=60) as client:
        told = client.get("/events?limit=10000").raise_for_status().json()["events"]
    lost = tuple(
        f"{who}: {one.error or 'ended without a word'}"
        for who, one in heard
        if one.error or not one.has_end
    )
    return Account(
        seconds=seconds,
        seed=seed,
        n_waves=n_waves,
        answered=len(heard) - len(lost),
        lost=lost,
        oom_kills=group.oom_kills,
        deaths=tuple(e["reason"] for e in told if e["kind"] == "instance.ended"),
        events=Counter(event["kind"] for event in told),
        least_free_bytes=least_free_bytes,
    )


if __name__ == "__main__":
    main()
