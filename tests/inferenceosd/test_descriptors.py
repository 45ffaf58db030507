import resource
import subprocess
import sys
from pathlib import Path

from inferenceosd.descriptors import LEAST_DESCRIPTORS, MOST_DESCRIPTORS, claim_descriptors, granted
from proxy.edge.crowd import CrowdLimits


def test_the_daemon_may_open_as_many_files_as_it_is_granted() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        claim_descriptors()
        claimed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert claimed == min(hard, MOST_DESCRIPTORS)


def test_callers_are_no_more_than_half_the_files_that_may_be_open() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        few = granted(CrowdLimits(in_all=4096, per_address=7))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert few == CrowdLimits(in_all=128, per_address=7)


def test_a_daemon_that_may_open_too_few_files_says_so_in_one_line(tmp_path: Path) -> None:
    daemon = Path(sys.executable).with_name("inferenceosd")
    few = LEAST_DESCRIPTORS - 1
    options = ["--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "state")]

    ended = subprocess.run(
        ["prlimit", f"--nofile={few}:{few}", str(daemon), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"may open {few} files" in line
    assert "ulimit -n" in line
