import pytest

from supervisor.llama import ChildState, is_healthy, parse_state


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
    assert not await is_healthy("/nowhere/child.sock")
