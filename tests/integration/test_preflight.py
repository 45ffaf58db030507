"""Launches at the very edge of the memory there is: the engine itself says whether they fit."""

from pathlib import Path
from typing import Any

from bench.planner.engine import live_engine
from bench.planner.live import read
from planners.graph.kv_cache import LaunchShape
from planners.hardware import HOST
from planners.memory import host_overhead_bytes, predict
from planners.plan import DeviceBytes
from scripts.started_daemon import StartedDaemon

MODEL = "SmolLM2-135M-Instruct.Q4_1"
CONTEXT, SLOTS = 256, 32
WIDE, NARROW = 64, 32  # tokens a batch: the two smallest that a processor is given
A_LITTLE = 2 << 10  # less than the engine's print leaves open


def needs(model_dir: Path, *, n_ubatch: int) -> DeviceBytes:
    """What the launch takes of the host, without any prompt cache."""
    info = read(model_dir / f"{MODEL}.gguf")
    shape = LaunchShape(
        CONTEXT * SLOTS, SLOTS, n_ubatch, n_ubatch, host_tiles=live_engine().has_tiles
    )
    (part,) = predict(info, shape, overhead_bytes={HOST: host_overhead_bytes(info)})
    return part


def within(limit_bytes: int, *, flags: str = "[]") -> str:
    return f"""
        [memory]
        limit = {limit_bytes}
        reserve = 0
        [models]
        cache_type_k = "f16"
        cache_type_v = "f16"
        [[model]]
        name = "{MODEL}"
        context = {CONTEXT}
        parallel = {SLOTS}
        flags = {flags}
    """


def loaded(daemon: StartedDaemon) -> Any:
    told = daemon.ctl("load", MODEL)
    assert told.returncode == 0, told.stderr
    (instance,) = daemon.status()["instances"]
    return instance


def said(instance: Any) -> str:
    """The reasons of its plan, as people read them."""
    return "; ".join(reason["text"] for reason in instance["reasons"])


def dry_runs(daemon: StartedDaemon) -> int:
    return daemon.log().count("dry_run.done")


def test_what_fits_by_its_upper_bound_is_not_run_dry(start: Any, model_dir: Path) -> None:
    daemon = start(config=within(needs(model_dir, n_ubatch=WIDE).upper_bytes))

    instance = loaded(daemon)

    assert f"batches of {WIDE} tokens" in said(instance)
    assert dry_runs(daemon) == 0


def test_a_launch_in_doubt_goes_ahead_where_the_engine_confirms_it(
    start: Any, model_dir: Path
) -> None:
    part = needs(model_dir, n_ubatch=WIDE)
    limit_bytes = part.total_bytes + part.margin_bytes // 2
    daemon = start(config=within(limit_bytes))

    instance = loaded(daemon)

    reasons = said(instance)
    assert f"batches of {WIDE} tokens" in reasons
    assert "buffers as a dry run of the engine told" in reasons
    assert dry_runs(daemon) == 1
    daemon.ctl("unload", MODEL)
    assert said(loaded(daemon)) == reasons
    assert dry_runs(daemon) == 1


def test_a_launch_in_doubt_that_the_engine_does_not_confirm_concedes_more(
    start: Any, model_dir: Path
) -> None:
    daemon = start(config=within(needs(model_dir, n_ubatch=WIDE).total_bytes + A_LITTLE))

    instance = loaded(daemon)

    reasons = said(instance)
    assert f"batches of {NARROW} tokens" in reasons
    assert f"refused by a dry run: context {CONTEXT} × {SLOTS} in batches of {WIDE}" in reasons
    assert dry_runs(daemon) == 2  # the next concession was in doubt, too


def test_a_launch_in_doubt_without_another_concession_is_refused_with_what_is_missing(
    start: Any, model_dir: Path
) -> None:
    part = needs(model_dir, n_ubatch=NARROW)
    # What the flags add nobody predicts; the engine knows.
    flags = '["--batch-size", "512", "--ubatch-size", "512"]'
    limit_bytes = part.total_bytes + A_LITTLE  # less than the wider batches need
    daemon = start(config=within(limit_bytes, flags=flags))

    told = daemon.ctl("load", MODEL)

    assert told.returncode != 0
    assert "MiB on host missing" in told.stderr  # as the engine told, not as predicted
    assert dry_runs(daemon) == 1
