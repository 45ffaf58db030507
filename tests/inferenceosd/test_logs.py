"""inferenceosd.logs: one pipeline for structlog and the standard library."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
import structlog
from msgspec.structs import asdict, replace

from inferenceosd.logs import SOON_S, configure_logging, note_served, quiet_logging
from proxy.telemetry.served import Served


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def written(stream: StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_every_line_is_one_json_object() -> None:
    stream = StringIO()
    configure_logging("auto", "info", stream=stream)

    structlog.get_logger("x").info("instance.ready", model_id="qwen", load_s=1.5)

    (line,) = written(stream)
    assert line["event"] == "instance.ready"
    assert (line["level"], line["model_id"], line["load_s"]) == ("info", "qwen", 1.5)
    assert str(line["timestamp"]).endswith("Z")


def test_the_standard_librarys_records_take_the_same_way() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)

    logging.getLogger("somebody").warning("disk %s", "full", extra={"path": "/x"})

    (line,) = written(stream)
    assert (line["event"], line["level"], line["path"]) == ("disk full", "warning", "/x")


def test_uvicorn_says_nothing_of_requests_and_only_what_is_wrong() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)

    logging.getLogger("uvicorn.access").info("GET / 200")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").error("broken")

    assert [line["event"] for line in written(stream)] == ["broken"]


def test_what_is_below_the_level_is_not_written() -> None:
    stream = StringIO()
    configure_logging("json", "warning", stream=stream)

    structlog.get_logger("x").info("request.done")
    logging.getLogger("y").info("nothing")
    structlog.get_logger("x").warning("disk.full")

    assert [line["event"] for line in written(stream)] == ["disk.full"]


def test_a_loggers_level_follows_a_second_configuration() -> None:
    stream = StringIO()
    configure_logging("json", "error", stream=stream)
    log = structlog.get_logger("x")
    log.info("before")

    configure_logging("json", "debug", stream=stream)
    log.debug("after")

    assert [line["event"] for line in written(stream)] == ["after"]


def test_a_traceback_is_a_field_of_its_line() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)

    try:
        raise ValueError("why")
    except ValueError:
        structlog.get_logger("x").exception("instance.crashed")

    (line,) = written(stream)
    assert "ValueError: why" in str(line["exception"])


def test_a_field_that_json_does_not_know_is_written_as_text() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)

    structlog.get_logger("x").info("probe.done", path=Path("/x"), name="\udc80")

    (line,) = written(stream)
    assert (line["path"], line["name"]) == ("/x", "\udc80")


def test_a_reader_of_the_log_that_left_fails_nobody() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    configure_logging("json", "info", stream=stream)
    os.close(reading)

    structlog.get_logger("x").info("probe.done")

    with suppress(BrokenPipeError):  # what it still holds
        stream.close()


@pytest.mark.parametrize(
    ("format", "stream", "is_json"),
    [
        ("auto", Terminal(), False),
        ("auto", StringIO(), True),
        ("json", Terminal(), True),
        ("console", StringIO(), False),
    ],
    ids=["terminal", "file", "json on a terminal", "console in a file"],
)
def test_the_format_follows_the_stream_unless_told(
    format: str, stream: StringIO, is_json: bool
) -> None:
    configure_logging(format, "info", stream=stream)

    structlog.get_logger("x").info("instance.ready")

    assert stream.getvalue().startswith("{") is is_json
    assert "instance.ready" in stream.getvalue()


def test_nothing_is_logged_where_stdout_is_an_answer() -> None:
    stream = StringIO()
    configure_logging("json", "debug", stream=stream)

    with quiet_logging():
        structlog.get_logger("x").error("model.broken")
    structlog.get_logger("x").info("instance.ready")

    assert [line["event"] for line in written(stream)] == ["instance.ready"]


def test_console_lines_in_a_file_have_no_colours() -> None:
    stream = StringIO()
    configure_logging("console", "info", stream=stream)

    structlog.get_logger("x").info("instance.ready", model_id="qwen")

    assert "\x1b" not in stream.getvalue()


async def test_lines_of_one_moment_are_written_together_and_in_order() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)
    log = structlog.get_logger("x")

    log.info("request.served", status=200)
    log.info("request.served", status=404)
    assert written(stream) == []  # a write is due within SOON_S
    log.warning("disk.full")

    assert [line.get("status") for line in written(stream)] == [200, 404, None]
    assert all(str(line["timestamp"]).endswith("Z") for line in written(stream))


async def test_a_line_tells_the_time_at_which_it_was_told() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)
    log = structlog.get_logger("x").bind()

    before = datetime.now(UTC)
    log.info("request.served")
    after = datetime.now(UTC)
    await asyncio.sleep(2 * SOON_S)  # it is put into words later
    log.warning("disk.full")

    told = datetime.fromisoformat(str(written(stream)[0]["timestamp"]))
    assert before <= told + timedelta(microseconds=1)
    assert told <= after


async def test_a_line_is_written_soon_though_none_follows() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)

    structlog.get_logger("x").info("request.served")

    async with asyncio.timeout(5):
        while not written(stream):
            await asyncio.sleep(SOON_S)


SERVED = Served(
    request_id="r1", method="POST", path='/v1/"x"', status=200, caller="laptop",
    address="127.0.0.1", error=None, model_id="qwen", instance_id="qwen-1", slot=0, load_s=0.0,
    first_byte_s=0.0123, total_s=1.5, sent_bytes=10, prompt_tokens=3, decode_tokens=None,
)  # fmt: skip


async def test_the_line_of_a_request_is_written_in_its_turn_and_as_structlog_would() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)
    log = structlog.get_logger("x")

    note_served(SERVED)
    log.info("request.served", **asdict(SERVED))
    assert written(stream) == []  # a write is due within SOON_S
    log.warning("disk.full")

    quick, usual, last = written(stream)
    assert last["event"] == "disk.full"
    assert str(quick.pop("timestamp")) <= str(usual.pop("timestamp"))
    assert quick == usual


async def test_lines_of_requests_alone_are_written_each_with_its_own_time() -> None:
    stream = StringIO()
    configure_logging("json", "info", stream=stream)
    before = datetime.now(UTC)

    note_served(replace(SERVED, request_id="r1"))
    note_served(replace(SERVED, request_id="r2"))
    async with asyncio.timeout(5):
        while not written(stream):
            await asyncio.sleep(SOON_S)

    lines = written(stream)
    times = [datetime.fromisoformat(str(line["timestamp"])) for line in lines]
    assert [line["request_id"] for line in lines] == ["r1", "r2"]
    assert [(line["event"], line["level"]) for line in lines] == [("request.served", "info")] * 2
    assert before <= times[0] <= times[1] <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("format", "level", "is_told"),
    [("console", "info", True), ("json", "debug", True), ("json", "warning", False)],
)
async def test_the_line_of_a_request_keeps_to_the_format_and_the_level(
    format: str, level: str, is_told: bool
) -> None:
    stream = StringIO()
    configure_logging(format, level, stream=stream)

    note_served(SERVED)
    structlog.get_logger("x").warning("disk.full")

    assert ("request.served" in stream.getvalue()) == is_told
    assert stream.getvalue().startswith("{") == (format == "json")


def test_the_last_lines_are_written_as_the_process_ends() -> None:
    code = (
        "import asyncio, structlog\n"
        "from inferenceosd.logs import configure_logging\n"
        "configure_logging('json', 'info')\n"
        "async def main(): structlog.get_logger('x').info('daemon.stopped')\n"
        "asyncio.run(main())\n"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert json.loads(ran.stderr)["event"] == "daemon.stopped"


def test_a_traceback_on_a_console_tells_no_locals() -> None:
    stream = StringIO()
    configure_logging("console", "info", stream=stream)
    prompt = "what nobody else may read"

    try:
        int(prompt[:0])
    except ValueError:
        structlog.get_logger("x").exception("request.failed")

    assert "ValueError" in stream.getvalue()
    assert "nobody else" not in stream.getvalue()
