"""The quickstart's engine as measurements use it, and one launch of it."""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from planners.backends import Engine
from supervisor.engines.quickstart import packaged_engine
from supervisor.engines.tinymodel import tiny_model
from supervisor.engines.trial import has_tiles, parse_flags
from tests.fakes.rpc_servers import free_port

MOST_S = 20.0  # a launch; a cold shader cache or a busy machine
TWINS = 3  # devices that the one software device can be shown as
READY = "reserve took"  # the last buffer line is out; a warm decode may compile for a minute


@cache
def live_engine() -> Engine:
    """The quickstart's engine, with the one software device shown to it."""
    found = packaged_engine()
    assert found is not None, "the quickstart engine is not installed: make .venv/.quickstart"
    env = (*found.env, ("GGML_VK_VISIBLE_DEVICES", "0"))
    told = subprocess.run(
        [str(found.path), "--help"], env={**os.environ, **dict(env)}, capture_output=True,
        text=True, check=True, timeout=30,
    ).stdout  # fmt: skip
    engine = Engine(
        engine_id="live", backend="vulkan", path=str(found.path), source="quickstart", env=env,
        flags=parse_flags(told.splitlines()), devices=(), version="b10434",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tiles-") as folder:
        path = Path(folder) / "tiny.gguf"
        path.write_bytes(tiny_model())
        said = launch(path, ("--device", "none"), engine)
    return replace(engine, has_tiles=has_tiles(said))


def with_twins(engine: Engine) -> Engine:
    """`engine` with the one software device shown to it several times, as so many local ones."""
    env = dict(engine.env) | {"GGML_VK_VISIBLE_DEVICES": ",".join("0" * TWINS)}
    return replace(engine, env=tuple(env.items()))


def launch(path: Path, flags: Sequence[str], engine: Engine) -> list[str]:
    """The engine's log until its buffers are reserved, or to its end."""
    argv = [
        engine.path, "-m", str(path), *flags, "--fit", "off", "--no-warmup", "-lv", "4",
        "--port", str(free_port()),
    ]  # fmt: skip
    child = subprocess.Popen(
        argv, env={**os.environ, **dict(engine.env)}, cwd=path.parent, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    timer = threading.Timer(MOST_S, child.kill)
    timer.start()
    assert child.stdout is not None
    heard = []
    try:
        for line in child.stdout:
            heard.append(line.rstrip())
            if READY in line:
                child.send_signal(signal.SIGKILL)
                break
    finally:
        timer.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
    return heard
