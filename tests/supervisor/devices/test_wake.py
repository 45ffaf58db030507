import os
import time
from pathlib import Path

import pytest

from supervisor.devices.ping_pong import two_cores
from supervisor.devices.wake import WakeSource, wake_s


def test_a_wake_up_on_another_cpu_is_measured_once() -> None:
    source = WakeSource()

    first = source.read()

    assert (first is not None) is (len(os.sched_getaffinity(0)) > 1 and has_two_cores())
    assert first is None or 1e-7 < first < 0.1
    assert source.read() == first


def has_two_cores() -> bool:
    lists = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    told = {path.read_text() for path in lists}
    return len(told) != 1


def test_a_recorded_machine_has_nobody_to_wake(tmp_path: Path) -> None:
    assert WakeSource(tmp_path).read() is None


@pytest.mark.parametrize(
    "program",
    ["print('soon')", "print(-1)", "print(3)", "print('nan')", "print(1e-5); raise SystemExit(1)",
     "", "import os; os.kill(os.getpid(), 9)"],
    ids=["words", "negative", "seconds", "no number", "failed", "nothing", "killed"],
)  # fmt: skip
def test_what_is_no_time_of_a_wake_up_is_unknown(tmp_path: Path, program: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)

    assert wake_s(str(path)) is None


def test_a_measurement_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
                    "\ntime.sleep(60)")  # fmt: skip
    begun_s = time.monotonic()

    assert wake_s(str(path), limit_s=1.0) is None

    assert time.monotonic() - begun_s < 30
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("cpus", "pair"),
    [
        ([(0, "0"), (1, "1")], (0, 1)),
        ([(0, "0,64"), (64, "0,64")], None),
        ([(0, "0-1"), (1, "0-1"), (2, "2-3")], (0, 2)),
        ([(3, ""), (5, "")], (3, 5)),
        ([(7, "7")], None),
    ],
    ids=["cores", "siblings", "siblings first", "nobody tells", "one CPU"],
)
def test_threads_of_one_core_are_no_pair(
    cpus: list[tuple[int, str]], pair: tuple[int, int] | None
) -> None:
    assert two_cores(cpus) == pair
