"""Candidates are the fake server, in copies and under faults, and the real engine."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from planners.backends import Engine, EngineDevice, RejectedEngine
from supervisor.engines.backends import backend_kind, find_engines
from supervisor.engines.quickstart import packaged_engine
from supervisor.engines.trial import TrialLimits

FAKE = Path(__file__).parents[2] / "fakes" / "llama_server.py"
NOWHERE = "/nonexistent"
SIGILL = (("FAKE_FAULTS", '{"sigill": true}'),)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """Puts a fake llama-server somewhere, with a mark that makes it another binary."""

    def make(*place: str, mark: str = "") -> Path:
        path = tmp_path.joinpath(*place, "llama-server")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(FAKE.read_bytes() + f"\n# {mark or place}\n".encode())
        path.chmod(0o755)
        return path

    return make


def breaking(path: Path) -> None:
    """Turn a binary into one that ends at once."""
    path.write_text(f"#!/bin/sh\necho out of luck in {path} >&2\nexit 3\n")


async def find(
    state_dir: Path,
    *configured: tuple[str, str, tuple[tuple[str, str], ...]],
    path: str = NOWHERE,
) -> tuple[tuple[Engine, ...], tuple[RejectedEngine, ...]]:
    found = await find_engines(
        configured=configured, state_dir=state_dir, search_path=path, quickstart=False
    )
    return found.engines, found.rejected


async def test_engines_come_in_the_order_of_their_sources(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    configured, on_path = copy("configured"), copy("bin")
    built = copy("state", "engines", "cpu", "0c1e57-aa", "bin")

    engines, rejected = await find(
        tmp_path / "state", ("mine", str(configured), ()), path=str(on_path.parent)
    )

    assert [(e.source, e.path) for e in engines] == [
        ("config", str(configured)),
        ("built", str(built)),
        ("path", str(on_path)),
    ]
    assert rejected == ()


async def test_one_that_breaks_is_named_and_hides_no_other(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    good, bad = copy("good"), copy("bad")
    breaking(bad)

    engines, rejected = await find(
        tmp_path / "state", ("bad", str(bad), ()), ("gone", NOWHERE, ()), ("good", str(good), ())
    )

    assert [e.path for e in engines] == [str(good)]
    assert [(r.path, r.source) for r in rejected] == [(str(bad), "config"), (NOWHERE, "config")]
    assert "out of luck" in rejected[0].reason


async def test_one_whose_path_is_no_utf8_is_named_in_escapes(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    good, odd = copy("good"), copy("Mod\udce8les")

    engines, rejected = await find(
        tmp_path / "state", ("good", str(good), ()), path=str(odd.parent)
    )

    assert [e.path for e in engines] == [str(good)]
    assert [(r.path, r.reason) for r in rejected] == [
        (f"{tmp_path}/Mod\\udce8les/llama-server", "its path cannot be printed")
    ]


async def test_the_current_build_is_taken_under_its_own_path(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    copy("state", "engines", "cpu", "new", "bin")
    old = copy("state", "engines", "cpu", "old", "bin")
    (tmp_path / "state/engines/cpu/current").symlink_to("old")

    engines, _ = await find(tmp_path / "state")

    assert [e.path for e in engines] == [str(old)]


async def test_a_new_build_beside_a_proven_one_is_on_trial_and_the_proven_one_serves(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    new = copy("state", "engines", "cpu", "new", "bin")
    old = copy("state", "engines", "cpu", "old", "bin")
    (tmp_path / "state/engines/cpu/current").symlink_to("new")
    (tmp_path / "state/engines/cpu/proven").symlink_to("old")

    found = await find_engines(state_dir=tmp_path / "state", search_path=NOWHERE, quickstart=False)

    (engine,), (newcomer,) = found.engines, found.newcomers
    assert engine.path == str(old)
    assert newcomer.engine.path == str(new)
    assert newcomer.old_engine_id == engine.engine_id
    assert newcomer.since == (tmp_path / "state/engines/cpu/current").lstat().st_mtime


async def test_a_build_that_was_rolled_back_is_not_tried_again(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    copy("state", "engines", "cpu", "new", "bin")
    old = copy("state", "engines", "cpu", "old", "bin")
    (tmp_path / "state/engines/cpu/current").symlink_to("new")
    (tmp_path / "state/engines/cpu/new.failed").write_text("it died")

    engines, rejected = await find(tmp_path / "state")

    assert [e.path for e in engines] == [str(old)]
    assert rejected == ()


async def test_where_the_current_build_fails_an_older_one_serves(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    new = copy("state", "engines", "cpu", "new", "bin")
    old = copy("state", "engines", "cpu", "old", "bin")
    breaking(new)
    (tmp_path / "state/engines/cpu/current").symlink_to("new")

    engines, rejected = await find(tmp_path / "state")

    assert [e.path for e in engines] == [str(old)]
    assert [r.path for r in rejected] == [str(new)]


async def test_a_build_that_is_not_finished_is_no_candidate(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    copy("state", "engines", "cpu", ".staging-x", "bin")

    assert await find(tmp_path / "state") == ((), ())


async def test_one_binary_under_two_names_is_one_engine(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    first, twin = copy("first", mark="same"), copy("twin", mark="same")

    engines, rejected = await find(
        tmp_path / "state",
        ("a", str(first), ()),
        ("b", str(first), ()),
        ("c", str(twin), ()),
    )

    assert [e.path for e in engines] == [str(first)]
    assert rejected == ()


async def test_a_binary_for_another_cpu_is_refused_and_remembered(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path = copy("bin")
    mine = ("mine", str(path), SIGILL)
    _, before = await find(tmp_path / "state", mine)

    engines, rejected = await find(tmp_path / "state", mine)

    assert engines == ()
    assert rejected == before
    assert rejected[0].reason == "built for another CPU (SIGILL on its first decode)"


async def test_a_verdict_is_reached_once_per_content_and_environment(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path = copy("bin")
    trials = tmp_path / "trials"
    path.write_text(
        f'#!/bin/sh\n[ "$1" != --version ] || echo tried >> {trials}\nexec {FAKE} "$@"\n'
    )
    state = tmp_path / "state"

    await find(state, ("a", str(path), ()))
    await find(state, ("a", str(path), ()))
    assert trials.read_text() == "tried\n"

    (path.parent / "libggml-cpu.so").write_bytes(b"another library")
    await find(state, ("a", str(path), ()))
    assert trials.read_text() == "tried\n" * 2

    await find(state, ("a", str(path), (("GGML_VK_PREFER_HOST_MEMORY", "1"),)))
    assert trials.read_text() == "tried\n" * 3


async def test_a_failure_that_can_be_mended_is_tried_anew(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path = copy("bin")
    path.write_text(
        "#!/bin/sh\n"
        f"[ -e {tmp_path}/library ] || {{ echo 'llama-server: error while loading shared libraries:"
        " libgomp.so.1: cannot open shared object file' >&2; exit 127; }\n"
        f'exec {FAKE} "$@"\n'
    )
    mine = ("mine", str(path), ())
    _, rejected = await find(tmp_path / "state", mine)
    (tmp_path / "library").touch()

    engines, _ = await find(tmp_path / "state", mine)

    assert "apt install libgomp1" in rejected[0].reason
    assert [e.path for e in engines] == [str(path)]


async def test_devices_are_asked_anew_at_each_start(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path = copy("bin")
    devices = tmp_path / "devices"
    path.write_text(
        f'#!/bin/sh\n[ "$1" != --list-devices ] || exec cat {devices}\nexec {FAKE} "$@"\n'
    )
    mine = ("mine", str(path), ())
    devices.write_text("Available devices:\n  (none)\n")
    before, _ = await find(tmp_path / "state", mine)
    devices.write_text("Available devices:\n  CUDA0: NVIDIA T4 (15360 MiB, 15000 MiB free)\n")

    after, _ = await find(tmp_path / "state", mine)

    assert [(e.backend, len(e.devices)) for e in (*before, *after)] == [("cpu", 0), ("cuda", 1)]


async def test_a_damaged_memory_is_forgotten_and_written_anew(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path = copy("bin")
    memory = tmp_path / "state" / "engines.json"
    memory.parent.mkdir()
    memory.write_text('{"schema": 1, "contents": [')

    engines, _ = await find(tmp_path / "state", ("mine", str(path), ()))

    assert len(engines) == 1
    assert '"verdicts"' in memory.read_text()


async def test_a_state_folder_that_cannot_be_written_costs_only_the_memory(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path = copy("bin")
    blocked = tmp_path / "file"
    blocked.touch()

    engines, _ = await find(blocked / "state", ("mine", str(path), ()))

    assert [e.path for e in engines] == [str(path)]


async def test_cancelling_the_search_leaves_no_process(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    paths = [copy(f"hangs-{n}") for n in range(3)]
    for path in paths:
        path.write_text(f"#!/bin/sh\necho > {tmp_path}/began\nsleep 60\n")
    search = asyncio.create_task(
        find(tmp_path / "state", *(("x", str(path), ()) for path in paths))
    )
    async with asyncio.timeout(20):
        while not (tmp_path / "began").exists():
            await asyncio.sleep(0.02)  # cadence: no event crosses from a shell script

    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search

    assert not psutil.Process().children(recursive=True)


async def test_at_most_two_trials_run_at_once(tmp_path: Path, copy: Callable[..., Path]) -> None:
    paths = [copy(f"engine-{n}") for n in range(4)]
    running = tmp_path / "running"
    running.mkdir()
    for path in paths:
        path.write_text(
            "#!/bin/sh\n"
            f"touch {running}/$$; ls {running} | wc -l >> {tmp_path}/counts\n"
            f"sleep 0.1; rm {running}/$$; exit 3\n"
        )

    await find(tmp_path / "state", *(("x", str(path), ()) for path in paths))

    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 4
    assert max(counts) == 2


@pytest.mark.parametrize(
    ("device", "libraries", "backend"),
    [
        ("CUDA0", (), "cuda"),
        ("ROCm1", (), "hip"),
        ("MTL0", (), "metal"),
        ("Vulkan12", ("libggml-cpu.so",), "vulkan"),
        (None, ("libggml-base.so", "libggml-vulkan.so.0"), "vulkan"),
        (None, ("libggml-base.so", "libggml-cpu-haswell.so"), "cpu"),
        ("RPC0", (), "cpu"),
        (None, (), "cpu"),
    ],
)
def test_the_backend_is_told_by_devices_else_by_libraries(
    device: str | None, libraries: tuple[str, ...], backend: str
) -> None:
    devices = () if device is None else (EngineDevice(device, "a card", 1, 1),)

    assert backend_kind(devices, libraries) == backend


def test_an_engine_of_two_backends_counts_as_the_better_one() -> None:
    devices = (EngineDevice("Vulkan0", "a card", 1, 1), EngineDevice("CUDA0", "a card", 1, 1))

    assert backend_kind(devices, ()) == "cuda"


@pytest.mark.llama
async def test_the_quickstart_engine_is_found_tried_and_known_at_the_next_start(
    tmp_path: Path,
) -> None:
    found = await find_engines(state_dir=tmp_path, search_path=NOWHERE)
    again = await find_engines(state_dir=tmp_path, search_path=NOWHERE)

    assert found.rejected == ()
    assert [(e.source, e.backend) for e in found.engines] == [("quickstart", "vulkan")]
    assert again == found


@pytest.mark.llama
async def test_an_engine_that_lost_a_library_names_it(tmp_path: Path) -> None:
    packaged = packaged_engine()
    assert packaged is not None
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("llama-server", "libllama-server-impl.so"):
        shutil.copy2(packaged.path.parent / name, folder)

    _, rejected = await find(tmp_path / "state", ("mine", str(folder / "llama-server"), ()))

    assert "needs libllama-common.so.0, which is not installed" in rejected[0].reason


async def test_a_driver_that_hangs_an_engine_does_not_hang_the_search(
    tmp_path: Path, copy: Callable[..., Path]
) -> None:
    path, good = copy("bin"), copy("good")
    path.write_text(f'#!/bin/sh\n[ "$1" != --list-devices ] || exec sleep 60\nexec {FAKE} "$@"\n')

    found = await find_engines(
        configured=(("hangs", str(path), ()), ("good", str(good), ())),
        state_dir=tmp_path / "state",
        search_path=NOWHERE,
        quickstart=False,
        limits=TrialLimits(ask_s=3.0),
    )

    assert [e.path for e in found.engines] == [str(good)]
    assert "--list-devices" in found.rejected[0].reason
