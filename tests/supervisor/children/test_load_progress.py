"""supervisor.children.load_progress: what counts as progress of a load, and when it is over."""

from supervisor.children.load_progress import MAX_LINES, LoadLimits, LoadProgress

LIMITS = LoadLimits(stall_s=10.0, total_s=100.0)


def why(progress: LoadProgress, *, now_s: float, read: int | None = 0) -> str | None:
    return progress.why_stalled(LIMITS, reads=lambda: read, now_s=now_s)


def test_a_new_line_is_progress_and_the_same_again_is_none() -> None:
    progress = LoadProgress(now_s=0.0)
    progress.logged("0.00.100.000 I load_tensors: layer 1", now_s=5.0)
    progress.logged("0.00.200.000 I load_tensors: layer 2", now_s=9.0)
    progress.logged("0.00.900.000 I load_tensors: layer 2", now_s=18.0)

    assert why(progress, now_s=19.0) is None
    assert why(progress, now_s=19.1) == "it made no progress while loading for 10 s"


def test_a_step_told_again_is_no_progress() -> None:
    progress = LoadProgress(now_s=0.0)
    progress.stepped("loading", 0.5, now_s=5.0)
    progress.stepped("loading", 0.5, now_s=14.0)

    assert why(progress, now_s=15.0) is None
    assert why(progress, now_s=15.1) is not None


def test_what_it_reads_is_progress() -> None:
    progress = LoadProgress(now_s=0.0)

    assert why(progress, now_s=9.0, read=1) is None
    assert why(progress, now_s=18.0, read=1) is None
    assert why(progress, now_s=19.1, read=1) is not None
    assert why(progress, now_s=19.1, read=None) is not None


def test_lines_count_up_to_a_bound() -> None:
    progress = LoadProgress(now_s=0.0)
    for n in range(MAX_LINES + 100):
        progress.logged(f"line {n}", now_s=float(n) / MAX_LINES)
    progress.logged("one more", now_s=9.0)

    assert why(progress, now_s=11.1) is not None


def test_no_load_goes_on_for_ever() -> None:
    progress = LoadProgress(now_s=0.0)
    progress.logged("new", now_s=100.0)

    assert why(progress, now_s=100.0) is None
    assert why(progress, now_s=100.1) == "it was not ready after loading for 100 s"
