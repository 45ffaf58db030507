import asyncio
import os
import resource
import time
from contextlib import suppress
from pathlib import Path

import pytest

from supervisor.children.llama import (
    ChildState,
    SlotsTold,
    answers,
    client_of,
    is_healthy,
    parse_state,
    slots_told,
)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        pytest.param(
            'cmd_child_to_router:state:{"state":"loading","payload":'
            '{"stages":["text_model"],"current":"text_model","value":0.25}}',
            ChildState("loading", 0.25),
            id="loading tells its progress",
        ),
        pytest.param(
            'cmd_child_to_router:state:{"state":"ready","payload":{"id":"m"}}',
            ChildState("ready", None),
            id="ready has a payload of another kind",
        ),
        pytest.param(
            'cmd_child_to_router:state:{"state":"sleeping","payload":null}',
            ChildState("sleeping", None),
            id="sleeping",
        ),
        pytest.param("main: server is listening", None, id="any other line"),
        pytest.param("cmd_child_to_router:state:{", None, id="half a line"),
        pytest.param('cmd_child_to_router:state:{"state":5}', None, id="another type"),
        pytest.param(
            'cmd_child_to_router:state:{"state":"loading","payload":{"value":"x"}}',
            None,
            id="progress that is no number",
        ),
    ],
)
def test_a_stdout_line_tells_the_childs_state_or_none(line: str, state: ChildState | None) -> None:
    assert parse_state(line) == state


async def test_a_socket_that_is_not_there_is_not_healthy() -> None:
    async with client_of("/nowhere/child.sock", timeout_s=1.0) as client:
        assert not await is_healthy(client)


@pytest.mark.parametrize(("status", "healthy"), [(b"200 OK", True), (b"503 Loading", False)])
async def test_a_child_is_healthy_once_it_says_so(
    short_dir: Path, status: bytes, healthy: bool
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    path = str(short_dir / "child.sock")
    async with (
        await asyncio.start_unix_server(answer, path),
        client_of(path, timeout_s=5.0) as client,
    ):
        assert await is_healthy(client) is healthy


async def test_any_answer_shows_that_a_child_lives_and_silence_shows_that_it_may_not(
    short_dir: Path,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    loud, mute = str(short_dir / "loud.sock"), str(short_dir / "mute.sock")
    async with (
        await asyncio.start_unix_server(answer, loud),
        await asyncio.start_unix_server(say_nothing, mute),
        client_of(loud, timeout_s=5.0) as loud_client,
        client_of(mute, timeout_s=0.1) as mute_client,
    ):
        assert await answers(loud_client)
        assert not await answers(mute_client)


async def test_descriptors_that_we_lack_are_not_the_childs_silence(short_dir: Path) -> None:
    path = str(short_dir / "child.sock")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with client_of(path, timeout_s=5.0) as client:
        assert not await answers(client)  # imports what a first request needs
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), limits[1]))
        held: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    held.append(os.dup(0))
            is_answering = await answers(client)
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert is_answering


BUSY = (
    b'{"id":0,"n_ctx":2048,"is_processing":true,"id_task":7,"n_prompt_tokens":1801,'
    b'"n_prompt_tokens_processed":1801,"params":{"seed":1},"next_token":'
)
FREE = b'{"id":1,"n_ctx":2048,"is_processing":false}'


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(
            b"[" + BUSY + b'[{"n_decoded":35,"n_remain":5}]},' + FREE + b"]",
            SlotsTold(busy=1, steps=((7, 1801, 35), (-1, 0, 0))),
            id="today's form",
        ),
        pytest.param(
            b"[" + BUSY + b'{"n_decoded":35}}]',
            SlotsTold(busy=1, steps=((7, 1801, 35),)),
            id="an object for the next token",
        ),
        pytest.param(b'{"error":{"code":501}}', None, id="refused"),
        pytest.param(b"[", None, id="no JSON"),
    ],
)
async def test_what_the_slots_count_is_read_where_it_is_told(
    short_dir: Path, body: bytes, told: SlotsTold | None
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    path = str(short_dir / "child.sock")
    async with (
        await asyncio.start_unix_server(answer, path),
        client_of(path, timeout_s=5.0) as client,
    ):
        assert await slots_told(client) == told


def test_a_client_of_a_child_loads_no_certificates() -> None:
    began_s = time.process_time()

    for _ in range(20):
        client_of("/nowhere/child.sock", timeout_s=1.0)

    assert time.process_time() - began_s < 0.2
