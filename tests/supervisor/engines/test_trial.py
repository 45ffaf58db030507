"""Faults are small shell scripts; what decodes is the fake server or the real one."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from bench.planner.engine import live_engine
from planners.backends import Engine, EngineDevice, LogDialect
from planners.sizes import MIB
from supervisor.engines.quickstart import packaged_engine
from supervisor.engines.trial import (
    MAX_LINES,
    TrialFailed,
    TrialLimits,
    has_tiles,
    list_devices,
    parse_devices,
    parse_flags,
    parse_log_levels,
    parse_version,
    refuse_foreign,
    try_engine,
    why_it_ended,
)
from tests.fakes.system_parts import need_mesa

FAKE = Path(__file__).parents[2] / "fakes" / "llama_server.py"
LIMITS = TrialLimits(ask_s=10.0, decode_s=20.0)
SHORT = TrialLimits(ask_s=0.5, decode_s=0.5)


def engine_at(path: str | Path, env: tuple[tuple[str, str], ...] = ()) -> Engine:
    return Engine(
        engine_id="0" * 12,
        backend="cpu",
        path=str(path),
        source="config",
        env=env,
        flags=frozenset(),
        devices=(),
        version="unknown",
    )


def fake_engine(faults: str = "{}") -> Engine:
    return engine_at(FAKE, env=(("FAKE_FAULTS", faults),))


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Engine]:
    """An engine that is a shell script."""

    def make(body: str) -> Engine:
        path = tmp_path / "llama-server"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return engine_at(path)

    return make


def test_flags_are_all_spellings_that_a_help_names_and_nothing_of_its_prose() -> None:
    lines = (
        "----- common params -----",
        "",
        "-h,    --help, --usage                  print usage and exit",
        "-fa,   --flash-attn [on|off|auto]       set Flash Attention use",
        "                                        (env: LLAMA_ARG_FLASH_ATTN) --not-a-flag",
        "--perf, --no-perf                       whether to enable, see --verbose",
        "-hf,   -hfr, --hf-repo <user>/<model>[:quant]",
    )

    assert parse_flags(lines) == {
        "-h", "--help", "--usage", "-fa", "--flash-attn", "--perf", "--no-perf",
        "-hf", "-hfr", "--hf-repo",
    }  # fmt: skip


def test_devices_are_read_with_parentheses_in_their_names() -> None:
    lines = (
        "Available devices:",
        "  Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 1024 MiB free)",
        "  CUDA1: NVIDIA H100 80GB HBM3 (81559 MiB, 81032 MiB free)",
        "  RPC0: 127.0.0.1:21610 (24105 MiB, 24105 MiB free)",
    )

    assert parse_devices(lines) == (
        EngineDevice("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", 2048 * MIB, 1024 * MIB),
        EngineDevice("CUDA1", "NVIDIA H100 80GB HBM3", 81559 * MIB, 81032 * MIB),
        EngineDevice("RPC0", "127.0.0.1:21610", 24105 * MIB, 24105 * MIB),
    )


def test_an_engine_without_devices_lists_none() -> None:
    assert parse_devices(("Available devices:", "  (none)")) == ()


@pytest.mark.parametrize(
    ("lines", "version"),
    [
        (("version: 0.1.0-dev (build 1, commit 7e4c0a9)",), "0.1.0-dev (build 1, commit 7e4c0a9)"),
        (("load_backend: loaded", "version: 10434 (7e4c0a9)  "), "10434 (7e4c0a9)"),
        (("no such line",), "unknown"),
    ],
    ids=["new", "old", "none"],
)
def test_the_version_is_what_follows_its_word(lines: tuple[str, ...], version: str) -> None:
    assert parse_version(lines) == version


@pytest.mark.parametrize(
    ("returncode", "line", "reason", "lasting"),
    [
        (-4, "AMX is not ready to be used!", "built for another CPU (SIGILL on --help)", True),
        (132, "", "built for another CPU (SIGILL on --help)", True),
        (
            127,
            "llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared"
            " object file: No such file or directory",
            "needs libgomp.so.1, which is not installed: apt install libgomp1",
            False,
        ),
        (
            127,
            "x: error while loading shared libraries: libodd.so.9: cannot open shared object file",
            "needs libodd.so.9, which is not installed: install the package that provides it",
            False,
        ),
        (
            1,
            "/lib/libc.so.6: version `GLIBC_2.38' not found (required by llama-server)",
            "needs a newer system (GLIBC_2.38 is missing)",
            False,
        ),
        (
            126,
            "setpriv: failed to execute /x/llama-server: Exec format error",
            "built for another kind of machine, or no program at all (Exec format error)",
            False,
        ),
        (
            127,
            "setpriv: failed to execute /x/llama-server: No such file or directory",
            "cannot start: its loader or interpreter is not installed",
            False,
        ),
        (-11, "", "ended with SIGSEGV on --help: no message", False),
        (3, "disk on fire\n", "ended with code 3 on --help: disk on fire", False),
    ],
)
def test_an_exit_is_explained_to_operators(
    returncode: int, line: str, reason: str, lasting: bool
) -> None:
    assert why_it_ended(returncode, (line,), doing="--help") == (reason, lasting)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0.1 I load_tensors:          AMX model buffer size =     0.58 MiB", True),
        ("0.1 I load_tensors:   CPU_REPACK model buffer size =     0.58 MiB", False),
        ("system_info: CPU : AVX512 = 1 | AMX_INT8 = 1 |", False),  # it has yet to get leave
    ],
)
def test_an_engine_that_lays_out_weights_for_tiles_says_so(line: str, expected: bool) -> None:
    assert has_tiles(["loading", line]) is expected


@pytest.mark.parametrize(
    ("levels", "buffers", "sizes"),
    [
        (("2: warning", "3: info", "4: trace (more info)", "5: debug"), 4, 5),
        (("2: warning", "3: info", "4: debug"), 3, 4),
        ((), 0, 1),
    ],
    ids=["traced", "informed", "unnamed"],
)
def test_an_engine_is_told_to_log_by_the_levels_that_its_help_lists(
    levels: tuple[str, ...], buffers: int, sizes: int
) -> None:
    lines = (
        "--numa TYPE                             attempt optimizations",
        "                                         - 9: trace",
        "-lv,   --verbosity, --log-verbosity N   Set the verbosity threshold. Values:",
        *(f"                                         - {level}" for level in levels),
        "                                        (default: 3)",
        "--log-prefix, --no-log-prefix           Enable prefix in log messages",
        "                                         - 8: debug",
    )

    dialect = parse_log_levels(lines)

    assert (dialect.buffers_verbosity, dialect.sizes_verbosity) == (buffers, sizes)


async def test_an_engine_that_decodes_tells_what_it_can() -> None:
    able = await try_engine(fake_engine(), limits=LIMITS)

    assert able.version == "1 (fake)"
    assert {"--model", "--device", "--cache-ram"} <= able.flags
    assert able.speaks_child_protocol
    assert not able.saves_slots  # it lists the option, and knows no such route


async def test_an_engine_that_dies_of_saving_a_slot_serves_without() -> None:
    able = await try_engine(fake_engine('{"die_at_slot_file": true}'), limits=LIMITS)

    assert not able.saves_slots


@pytest.mark.llama
async def test_the_real_engine_decodes_the_tiny_model() -> None:
    packaged = packaged_engine()
    assert packaged is not None

    able = await try_engine(engine_at(packaged.path, packaged.env), limits=TrialLimits())

    assert able.version != "unknown"
    assert {"--fit", "--device", "--slot-save-path", "-ngl", "-fa"} <= able.flags
    assert able.has_tiles is live_engine().has_tiles
    assert able.log == LogDialect(4, 5, has_stamps=True)
    assert able.saves_slots
    assert able.speaks_child_protocol


@pytest.mark.llama
async def test_what_a_real_engine_of_another_age_lacks_is_found_by_trying(
    script: Callable[[str], Engine],
) -> None:
    packaged = packaged_engine()
    assert packaged is not None
    lacks = "grep -v -e slot-save-path -e log-prefix -e log-timestamps -e trace -e '- 5'"
    older = script(
        f"""unset LLAMA_SERVER_ROUTER_PORT
        [ "$1" != --help ] || {{ {packaged.path} --help | {lacks}; exit; }}
        exec {packaged.path} "$@" --no-log-prefix --no-log-timestamps"""
    )

    able = await try_engine(replace(older, env=packaged.env), limits=TrialLimits())

    assert able.log == LogDialect(3, 4, has_stamps=False)
    assert not able.saves_slots
    assert not able.speaks_child_protocol


@pytest.mark.llama
async def test_the_real_engine_lists_mesas_software_device(monkeypatch: pytest.MonkeyPatch) -> None:
    need_mesa()
    packaged = packaged_engine()
    assert packaged is not None
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")

    devices = await list_devices(engine_at(packaged.path, packaged.env), limit_s=30.0)

    assert [device.name for device in devices] == ["Vulkan0"]
    assert "llvmpipe" in devices[0].description


async def test_an_engine_that_dies_of_sigill_on_its_first_decode_is_for_another_cpu() -> None:
    with pytest.raises(TrialFailed, match=r"built for another CPU") as failed:
        await try_engine(fake_engine('{"sigill": true}'), limits=LIMITS)

    assert failed.value.lasting
    assert failed.value.reason == "built for another CPU (SIGILL on its first decode)"


async def test_an_engine_that_dies_while_loading_is_refused_with_its_last_word() -> None:
    with pytest.raises(TrialFailed, match="first start") as failed:
        await try_engine(fake_engine('{"die_while_loading": "bad_model"}'), limits=LIMITS)

    assert not failed.value.lasting


@pytest.mark.parametrize(
    "faults", ['{"hang_decode": true}', '{"stuck_loading": true}'], ids=["decoding", "loading"]
)
async def test_an_engine_that_hangs_is_refused_in_time_and_leaves_no_process(faults: str) -> None:
    limits = TrialLimits(ask_s=10.0, decode_s=1.0)

    with pytest.raises(TrialFailed, match="did not decode within 1 s"):
        await try_engine(fake_engine(faults), limits=limits)

    assert not psutil.Process().children(recursive=True)


async def test_an_engine_that_answers_garbage_is_refused() -> None:
    with pytest.raises(TrialFailed, match=r"first decode|did not decode"):
        await try_engine(
            fake_engine('{"garbage": true}'), limits=TrialLimits(ask_s=10.0, decode_s=2.0)
        )


async def test_a_program_that_gives_no_answer_is_refused_in_time(
    script: Callable[[str], Engine],
) -> None:
    begun_s = time.monotonic()

    with pytest.raises(TrialFailed, match=r"gave no answer to --version within 0.5 s"):
        await try_engine(script("sleep 60"), limits=SHORT)

    assert time.monotonic() - begun_s < 10
    assert not psutil.Process().children(recursive=True)


async def test_a_program_that_floods_is_stopped_long_before_its_time_is_up(
    script: Callable[[str], Engine],
) -> None:
    with pytest.raises(TrialFailed, match=f"wrote more than {MAX_LINES} lines"):
        await try_engine(script("yes llama"), limits=TrialLimits(ask_s=100.0))

    assert not psutil.Process().children(recursive=True)


async def test_a_program_that_is_no_llama_server_is_refused(
    script: Callable[[str], Engine],
) -> None:
    with pytest.raises(TrialFailed, match="not that of a llama-server"):
        await try_engine(script("echo --color"), limits=LIMITS)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xf3\x00", 0o755, "another kind of machine"),
        (b"\x7fELF\x02\x01\x01" + bytes(11) + b"\x16\x00", 0o755, "another kind of machine"),
        (b"version https://git-lfs", 0o755, "no program"),
        (b"", 0o755, "no program"),
        (b"#!/bin/sh\n", 0o644, "chmod"),
        (None, 0, "no such file"),
    ],
    ids=["riscv", "s390", "text", "empty", "not-executable", "absent"],
)
def test_what_the_kernel_cannot_run_is_refused(
    tmp_path: Path, content: bytes | None, mode: int, reason: str
) -> None:
    path = tmp_path / "llama-server"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)

    with pytest.raises(TrialFailed, match=reason):
        refuse_foreign(str(path))


def test_programs_of_this_machine_and_scripts_are_let_through(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)

    refuse_foreign(str(path))
    refuse_foreign(sys.executable)


async def test_a_script_whose_interpreter_is_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llama-server"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)

    with pytest.raises(TrialFailed, match="interpreter is not installed"):
        await try_engine(engine_at(path), limits=LIMITS)


async def test_a_trial_runs_in_a_private_folder_that_it_cannot_fill(
    script: Callable[[str], Engine],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    devices = await list_devices(script("stat -c '  D%a: x (1 MiB, 1 MiB free)' . .."), limit_s=10)

    assert [device.name for device in devices] == ["D500", "D700"]
    assert list(folder.iterdir()) == []


async def test_a_trial_sees_no_variable_that_would_load_foreign_code(
    script: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LD_PRELOAD", "GGML_BACKEND_PATH", "LLAMA_ARG_MODEL"):
        monkeypatch.setenv(name, "/nowhere/evil.so")

    devices = await list_devices(
        script("env | sed -n 's|^\\([A-Z_]*\\)=.*evil.*|  \\1: leaked (1 MiB, 1 MiB free)|p'"),
        limit_s=10,
    )

    assert devices == ()


async def test_a_cancelled_trial_leaves_no_process(script: Callable[[str], Engine]) -> None:
    engine = script("trap '' TERM; touch \"$0.began\"; while :; do sleep 0.05; done")
    trial = asyncio.create_task(try_engine(engine, limits=TrialLimits(ask_s=60.0)))
    async with asyncio.timeout(20):
        while not Path(engine.path + ".began").exists():
            await asyncio.sleep(0.02)  # cadence: no event crosses from a shell script

    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial

    assert not psutil.Process().children(recursive=True)


async def test_a_long_temporary_folder_still_leaves_room_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    able = await try_engine(fake_engine(), limits=LIMITS)

    assert able.version == "1 (fake)"
    assert os.listdir(long) == []
