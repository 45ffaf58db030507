"""Leftovers are real processes here: the fake engine and its like, marked or not."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from supervisor.children.leftovers import MARK, mark_of, marked_children, remove_leftovers
from tests.fakes.processes import is_gone

WAITING = "import sys; print(flush=True); sys.stdin.read()"


class Start(Protocol):
    """What the fixture `start` gives."""

    def __call__(self, *, mark: str | None, code: str = WAITING) -> int:
        """The pid of a process that runs until the test ends."""


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """Of a state folder that no daemon has."""
    return mark_of(tmp_path)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes of one and the same program, ended with the test."""
    with ExitStack() as held:

        def started(*, mark: str | None, code: str = WAITING) -> int:
            env = {**os.environ, MARK: mark} if mark is not None else dict(os.environ)
            process = held.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            held.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline()
            return process.pid

        yield started


def test_what_carries_the_folders_mark_is_removed_and_told(mark: str, start: Start) -> None:
    pid = start(mark=mark)
    started_at = psutil.Process(pid).create_time()

    (left,) = remove_leftovers(mark, within_s=5.0)

    assert is_gone(pid)
    assert (left.pid, left.started_at) == (pid, started_at)


def test_what_a_leftover_started_goes_with_it(mark: str, start: Start) -> None:
    code = (
        "import subprocess, sys;"
        "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); sys.stdin.read()"
    )
    start(mark=mark, code=code)

    assert len(remove_leftovers(mark, within_s=5.0)) == 2


def test_what_a_leftover_started_goes_with_it_where_it_shows_no_environment(
    mark: str, start: Start
) -> None:
    """As in the midst of its exec, which lasts where cores are rare."""
    code = (
        "import subprocess, sys;"
        "child = subprocess.Popen(['sleep', '60'], env={}); print(child.pid, flush=True);"
        "sys.stdin.read()"
    )
    start(mark=mark, code=code)

    assert len(remove_leftovers(mark, within_s=5.0)) == 2


def test_what_is_started_while_leftovers_are_removed_goes_as_well(mark: str, start: Start) -> None:
    code = "import subprocess; print(flush=True)\nwhile True: subprocess.Popen(['sleep', '60'])"
    pids = [start(mark=mark, code=code) for _ in range(4)]

    remove_leftovers(mark, within_s=5.0)

    assert all(map(is_gone, pids))
    assert remove_leftovers(mark, within_s=5.0) == ()


def test_the_same_program_started_by_somebody_else_is_left_alone(
    mark: str, tmp_path: Path, start: Start
) -> None:
    (tmp_path / "other").mkdir()
    strangers = [start(mark=None), start(mark=mark_of(tmp_path / "other"))]

    assert remove_leftovers(mark, within_s=5.0) == ()

    assert not any(map(is_gone, strangers))


def test_a_child_that_somebody_started_by_hand_with_our_environment_is_left_alone(
    mark: str, start: Start, tmp_path: Path
) -> None:
    by_hand = (
        "import os, subprocess, sys;"
        f"env = {{**os.environ, {MARK!r}: {mark!r}}};"
        "child = subprocess.Popen(['cat'], env=env);"  # ends with the leader's own input
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); print(flush=True);"
        "child.wait()"
    )
    leader = start(mark=None, code=by_hand)
    pid = int((tmp_path / "pid").read_text())

    assert remove_leftovers(mark, within_s=5.0) == ()

    assert not is_gone(pid)
    assert not is_gone(leader)


def test_a_copy_of_a_state_folder_has_a_mark_of_its_own(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()

    assert mark_of(one) != mark_of(other)
    other.rmdir()
    assert mark_of(one.rename(other)) == mark_of(other)


def test_children_inherit_the_mark_for_as_long_as_the_block_lasts() -> None:
    with marked_children("2a-1"):
        told = subprocess.run(
            [sys.executable, "-c", f"import os; print(os.environ['{MARK}'])"],
            capture_output=True,
            text=True,
            check=True,
        )

    assert told.stdout == "2a-1\n"
    assert MARK not in os.environ
