import ctypes
import subprocess
import sys
from pathlib import Path

from supervisor.devices.nvidia_presence import NvidiaIfThere, has_card

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware"


def test_a_card_is_seen_on_the_bus_without_a_driver() -> None:
    assert has_card(FIXTURES / "nvidia-without-driver")
    assert not has_card(FIXTURES / "vm-cgroup-v1")


def test_wsl_lends_a_card_that_no_bus_shows(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.15.167.4-microsoft-standard-WSL2\n")
    assert not has_card(tmp_path)

    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert has_card(tmp_path)


def test_a_card_without_a_driver_is_told_with_the_remedy() -> None:
    reading = NvidiaIfThere(FIXTURES / "nvidia-without-driver").read()

    assert len(reading.notes) == 1


def test_pynvml_is_loaded_only_where_there_is_a_card_or_a_driver() -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from supervisor.devices.nvidia_presence import NvidiaIfThere\n"
        "source = NvidiaIfThere(Path(sys.argv[1]))\n"
        "source.read()\n"
        "print('pynvml' in sys.modules)"
    )

    def loads(machine: str) -> bool:
        argv = [sys.executable, "-c", program, str(FIXTURES / machine)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return done.stdout.strip() == "True"

    assert loads("nvidia-without-driver")
    assert loads("vm-cgroup-v1") == _has_library()


def _has_library() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True
