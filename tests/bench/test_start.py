"""bench.start, and with it the bar on what an idle daemon takes."""

from pathlib import Path

from bench.start import taken_idle
from scripts.started_daemon import started_daemon

MOST_BYTES = 60_000_000


def test_an_idle_daemon_with_both_doors_open_and_its_engines_tried_takes_less_than_60_mb(
    short_folder: Path,
) -> None:
    with started_daemon(short_folder, model_dirs=[short_folder]) as daemon:
        daemon.wait_for_engines()

        told = taken_idle(daemon.process.pid, 0.5)

    assert told.pss_bytes <= told.rss_bytes < MOST_BYTES
