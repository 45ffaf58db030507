import asyncio
import time
from pathlib import Path

import pytest

from supervisor.llama import ChildState, client_of, is_healthy, parse_state


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


def test_a_client_of_a_child_loads_no_certificates() -> None:
    began_s = time.process_time()

    for _ in range(20):
        client_of("/nowhere/child.sock", timeout_s=1.0)

    assert time.process_time() - began_s < 0.2
