"""Engines switched under a running daemon: a trial by one model, the rest after it, or back.

Builds are the fake server, which dies where it is told to; daemon, links and moves are real.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from planners.rollout import PROOF_ANSWERS
from scripts.started_daemon import StartedDaemon
from supervisor.engines.tinymodel import tiny_model
from tests.fakes.waiting import until
from tests.integration.conftest import Start
from tests.integration.streams import DIALECTS, asked

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"
WITHIN_S = 60.0
REFUSES_REAL_MODELS = """#!/bin/sh
case "$*" in
  *ios-scratch-*) ;;
  *--model*) echo "kernel not found" >&2; exit 9 ;;
esac
exec {fake} "$@"
"""


PACED = """#!/bin/sh
faults='{{"tokens": 200, "token_s": 0.3, "slow_while": "{slow}", "die_at_byte": {die_at_byte}}}'
exec {fake} --fake-faults "$faults" "$@"
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.gguf").write_bytes(tiny_model())
    return folder


@pytest.fixture
def daemon(start: Start, models: Path) -> StartedDaemon:
    """With one build in force."""
    daemon = start(model_dirs=(models,), config='[models]\nkeep_alive = "1h"\n')
    lay(daemon, "old")
    switch(daemon, "old")
    until(lambda: used(daemon) == {"old"}, within_s=WITHIN_S)
    return daemon


def builds_of(daemon: StartedDaemon) -> Path:
    return daemon.folder / "state" / "engines" / "cpu"


def lay(daemon: StartedDaemon, build_id: str, text: str | None = None) -> None:
    binary = builds_of(daemon) / build_id / "bin" / "llama-server"
    binary.parent.mkdir(parents=True)
    binary.write_text(text or FAKE.read_text() + f"\n# {build_id}\n")
    binary.chmod(0o755)


def switch(daemon: StartedDaemon, build_id: str) -> None:
    """As scripts/build_backends.sh does it."""
    fresh = builds_of(daemon) / ".fresh"
    fresh.symlink_to(build_id)
    os.replace(fresh, builds_of(daemon) / "current")


def listed(daemon: StartedDaemon) -> dict[str, dict[str, Any]]:
    transport = httpx.HTTPTransport(uds=str(daemon.admin_socket))
    with httpx.Client(transport=transport, base_url="http://admin", timeout=60) as client:
        report = client.get("/engines").json()
    return {build["build_id"]: build for build in report["builds"]}


def used(daemon: StartedDaemon) -> set[str]:
    return {build_id for build_id, build in listed(daemon).items() if build["is_used"]}


def ask(daemon: StartedDaemon, model: str) -> None:
    question = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    reply = httpx.post(f"{daemon.base}/v1/chat/completions", json=question, timeout=WITHIN_S)
    assert reply.status_code == 200, reply.text


def prove(daemon: StartedDaemon, *models: str) -> None:
    for model in models:
        for _ in range(PROOF_ANSWERS):
            ask(daemon, model)


def runs_on(daemon: StartedDaemon) -> dict[str, str]:
    """Model → build of its process."""
    found = {}
    for instance in daemon.status()["instances"]:
        if instance["state"] == "ready":
            words = Path(f"/proc/{instance['pid']}/cmdline").read_bytes().split(b"\0")
            binary = next(word for word in words if word.endswith(b"llama-server"))
            found[instance["model"]] = Path(os.fsdecode(binary)).parents[1].name
    return found


def kinds(daemon: StartedDaemon) -> list[str]:
    told = daemon.ctl("events", "--limit", "200", "--json").stdout
    return [line for line in told.split('"') if line.startswith("engine.")]


def test_one_model_tries_a_new_engine_and_the_others_follow_once_it_answered(
    daemon: StartedDaemon,
) -> None:
    prove(daemon, "a", "b")
    until(lambda: listed(daemon)["old"]["is_proven"], within_s=WITHIN_S)

    lay(daemon, "new")
    switch(daemon, "new")
    until(lambda: sorted(runs_on(daemon).values()) == ["new", "old"], within_s=WITHIN_S)
    assert listed(daemon)["new"]["is_on_trial"]
    assert used(daemon) == {"old"}
    (trier,) = (model for model, build in runs_on(daemon).items() if build == "new")
    prove(daemon, trier)

    until(lambda: listed(daemon)["new"]["is_proven"] and used(daemon) == {"new"}, within_s=WITHIN_S)
    for model in ("a", "b"):
        ask(daemon, model)
    until(lambda: runs_on(daemon) == {"a": "new", "b": "new"}, within_s=WITHIN_S)
    assert {"engine.on_trial", "engine.proven"} <= set(kinds(daemon))


def test_a_new_engine_that_fails_where_the_old_one_did_not_is_rolled_back(
    daemon: StartedDaemon,
) -> None:
    prove(daemon, "a")
    until(lambda: listed(daemon)["old"]["is_proven"], within_s=WITHIN_S)

    lay(daemon, "bad", REFUSES_REAL_MODELS.format(fake=FAKE))
    switch(daemon, "bad")
    until(lambda: listed(daemon)["bad"]["failed"] is not None, within_s=WITHIN_S)

    assert "kernel not found" in listed(daemon)["bad"]["failed"]
    assert os.readlink(builds_of(daemon) / "current") == "old"
    assert used(daemon) == {"old"}
    ask(daemon, "a")
    assert runs_on(daemon) == {"a": "old"}
    assert "engine.rolled_back" in kinds(daemon)


def test_a_reply_outlives_every_child_of_an_engine_that_is_rolled_back(
    start: Start, models: Path, tmp_path: Path
) -> None:
    daemon = start(model_dirs=(models,), config='[models]\nkeep_alive = "1h"\n')
    slow = tmp_path / "slow"
    lay(daemon, "old", PACED.format(fake=FAKE, slow=slow, die_at_byte=-1))
    switch(daemon, "old")
    until(lambda: used(daemon) == {"old"}, within_s=WITHIN_S)
    prove(daemon, "a")
    until(lambda: listed(daemon)["old"]["is_proven"], within_s=WITHIN_S)
    lay(daemon, "bad", PACED.format(fake=FAKE, slow=slow, die_at_byte=1500))
    slow.touch()  # the reply is not over before its engine is

    with ThreadPoolExecutor(1) as threads:
        stream = asked(daemon, threads, DIALECTS[0], "a b c d e", tokens=180)
        assert stream.begun.wait(WITHIN_S)
        switch(daemon, "bad")
        until(lambda: listed(daemon)["bad"]["failed"] is not None, within_s=WITHIN_S)
        slow.unlink()

        text = stream.text.result(WITHIN_S)  # an error in it would raise
    assert text.count("a b c d e") > 10
    assert kinds(daemon).count("engine.on_trial") == 2


def test_a_pinned_engine_is_held_and_one_in_force_is_not_removed(daemon: StartedDaemon) -> None:
    lay(daemon, "new")

    held = daemon.ctl("engines", "pin", "old")
    switch(daemon, "new")
    refused = daemon.ctl("engines", "remove", "old")
    until(lambda: listed(daemon)["new"]["is_current"], within_s=WITHIN_S)

    assert held.returncode == 0, held.stderr
    assert used(daemon) == {"old"}
    assert refused.returncode == 1
    assert "old stays: it is the pinned one of cpu" in refused.stderr
    assert daemon.ctl("engines", "pin", "old", "--off").returncode == 0
    until(lambda: used(daemon) == {"new"}, within_s=WITHIN_S)


def test_a_build_that_cannot_decode_is_listed_with_its_reason(daemon: StartedDaemon) -> None:
    lay(daemon, "broken", "#!/bin/sh\necho out of luck >&2\nexit 3\n")
    switch(daemon, "broken")

    until(lambda: "out of luck" in (listed(daemon)["broken"]["failed"] or ""), within_s=WITHIN_S)

    assert used(daemon) == {"old"}
