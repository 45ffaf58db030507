import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from planners.model import ModelId
from planners.plan import InstanceId
from supervisor.children.child_logs import (
    FILE_BYTES,
    MAX_INSTANCES,
    MAX_QUEUED_BYTES,
    ChildLogs,
    open_child_logs,
)

M = ModelId("hf/Qwen 3:8b")
I1 = InstanceId("i1")


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[ChildLogs]:
    async with open_child_logs(tmp_path / "logs") as logs:
        yield logs


async def test_lines_are_read_back_while_the_child_runs_and_after_it_ended(
    logs: ChildLogs,
) -> None:
    with logs.open(M, I1) as log:
        log.write("one")
        log.write("two")
        assert await logs.last(M, 10) == ("one", "two")
        log.write("last words")

    assert await logs.last(M, 2) == ("two", "last words")


async def test_another_daemon_reads_what_the_one_before_wrote(tmp_path: Path) -> None:
    async with open_child_logs(tmp_path) as logs:
        with logs.open(M, I1) as log:
            log.write("why it died")

    async with open_child_logs(tmp_path) as logs:
        assert await logs.last(M, 1) == ("why it died",)
        assert await logs.last(ModelId("other"), 1) == ()


async def test_the_newest_instance_is_the_one_that_is_asked_for(logs: ChildLogs) -> None:
    for n in range(3):
        with logs.open(M, InstanceId(f"i{n}")) as log:
            log.write(f"of i{n}")
        await asyncio.sleep(0.002)  # names are told apart by the millisecond

    assert await logs.last(M, 10) == ("of i2",)


async def test_an_instance_never_fills_more_than_its_two_files(
    logs: ChildLogs, tmp_path: Path
) -> None:
    with logs.open(M, I1) as log:
        for n in range(60):
            for _ in range(500):
                log.write(f"{n} " + "x" * 200)
            await logs.last(M, 1)

        sizes = [path.stat().st_size for path in (tmp_path / "logs").iterdir()]

        assert len(sizes) == 2
        assert max(sizes) <= FILE_BYTES
        assert (await logs.last(M, 5000))[-1].startswith("59 ")


async def test_a_flood_between_two_writes_is_bounded_and_counted(logs: ChildLogs) -> None:
    with logs.open(M, I1) as log:
        for _ in range(3 * MAX_QUEUED_BYTES // 100):
            log.write("x" * 99)

        lines = await logs.last(M, 100_000)

    assert sum(len(line) + 1 for line in lines) < MAX_QUEUED_BYTES + 200
    assert "lines came too fast and were dropped" in lines[-1]


async def test_files_are_private_and_named_by_their_model_alone(
    logs: ChildLogs, tmp_path: Path
) -> None:
    for model in (M, ModelId("../../etc/passwd"), ModelId("ü" * 3000), ModelId("a*[b]?@c")):
        with logs.open(model, I1) as log:
            log.write(f"of {model[:10]}")
        assert await logs.last(model, 1) == (f"of {model[:10]}",)

    files = list((tmp_path / "logs").iterdir())
    assert len(files) == 4
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


async def test_the_oldest_instances_make_way(logs: ChildLogs, tmp_path: Path) -> None:
    with logs.open(ModelId("still running"), I1) as kept:
        kept.write("first")
        for n in range(MAX_INSTANCES + 5):
            with logs.open(ModelId(f"m{n}"), I1) as log:
                log.write("x")
            await logs.last(M, 1)

        assert await logs.last(ModelId("still running"), 1) == ("first",)
        assert await logs.last(ModelId("m0"), 1) == ()
        assert len(list((tmp_path / "logs").iterdir())) <= MAX_INSTANCES + 1


async def test_a_folder_that_cannot_be_written_costs_lines_and_is_said_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    async with open_child_logs(tmp_path / "logs") as logs:
        with logs.open(M, I1) as log, capture_logs() as said:
            for _ in range(3):
                log.write("x")
                assert await logs.last(M, 1) == ()

    assert [line["event"] for line in said] == ["child_log.lost"]


async def test_old_files_that_cannot_be_removed_are_said_and_stop_nothing(tmp_path: Path) -> None:
    for n in range(MAX_INSTANCES + 1):
        (tmp_path / f"old-{n}@{n:013d}-i1.log").mkdir()  # which no unlink removes

    async with open_child_logs(tmp_path) as logs, asyncio.TaskGroup() as tasks:
        with capture_logs() as said:
            writer = tasks.create_task(logs.write_forever())
            with logs.open(M, I1) as log:
                log.write("hello")
                async with asyncio.timeout(5):
                    while not said:
                        await asyncio.sleep(0.01)
            assert await logs.last(M, 1) == ("hello",)
        writer.cancel()

    assert {line["event"] for line in said} == {"child_log.kept"}


async def test_a_grammar_that_the_engine_echoes_is_left_out(logs: ChildLogs) -> None:
    with logs.open(M, I1) as log:
        for line in (
            "parse: error parsing grammar: expecting ')' at private",
            "",
            "root ::= private (",
            "0.08.209.508 E failed to parse grammar",
        ):
            log.write(line)

        lines = await logs.last(M, 10)

    assert "private" not in "".join(lines)
    assert lines[-1] == "0.08.209.508 E failed to parse grammar"


async def test_a_grammar_is_left_out_of_a_log_without_times_too(logs: ChildLogs) -> None:
    with logs.open(M, I1) as log:
        log.begin("launch 1", has_stamps=False)
        for line in (
            "parse: error parsing grammar: expecting ')' at private",
            "root ::= private (",
            "0.08.209.508 E private, as no such engine begins a line",
            "srv    operator(): got exception: failed to parse grammar",
            "slot      release: id  0 | task 0 | stop processing",
        ):
            log.write(line)

        lines = await logs.last(M, 10)

    assert "private" not in "".join(lines)
    assert [line.split(":")[0] for line in lines[-2:]] == ["srv    operator()", "slot      release"]


async def test_who_follows_hears_every_later_child_of_the_model(logs: ChildLogs) -> None:
    heard: list[str] = []
    with logs.open(M, I1) as log:
        log.write("before")
        with logs.following(M) as follower:
            heard += await logs.last(M, 10)
            log.write("now")
            with logs.open(M, InstanceId("i2")) as relaunched:
                relaunched.write("relaunched")
            logs.end_following()
            while (news := await follower.unread(within_s=5)) is not None:
                heard += news[1]

    assert heard == ["before", "now", "relaunched"]
