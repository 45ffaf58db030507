"""Tensor split over ggml-rpc-servers, by the daemon as it is started."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from supervisor.devices.rpc import ASK_EVERY_S
from tests.fakes.rpc_servers import RpcServer, rpc_server
from tests.integration.conftest import Start

MIB = 1 << 20


@pytest.fixture
def three() -> Iterator[list[RpcServer]]:
    with ExitStack() as held:
        yield [held.enter_context(rpc_server()) for _ in range(3)]


def config(servers: list[RpcServer], *, limit_mib: int) -> str:
    """All servers, each with so little room that none holds the model alone."""
    names = ", ".join(f'"{server.address}"' for server in servers)
    limits = "".join(
        f'[devices."rpc:{server.address}"]\nlimit = "{limit_mib}MiB"\nreserve = 0\n'
        for server in servers
    )
    return f"[models]\ncontext = 2048\n[rpc]\nservers = [{names}]\n{limits}"


def test_a_model_is_split_over_three_servers_as_planned(
    start: Start, three: list[RpcServer]
) -> None:
    daemon = start(config=config(three, limit_mib=65), environ={"GGML_VK_VISIBLE_DEVICES": ""})
    model = httpx.get(f"{daemon.base}/v1/models").json()["data"][0]["id"]

    assert daemon.ctl("load", model).returncode == 0

    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    reply = httpx.post(f"{daemon.base}/v1/chat/completions", json=body, timeout=60)
    assert reply.json()["usage"]["completion_tokens"] > 0
    (instance,) = daemon.status()["instances"]
    assert sum(layers for _, layers in _layers(instance)) == 31
    assert {device for device, _ in _layers(instance)} == {f"rpc:{s.address}" for s in three}
    for part in instance["memory"]:
        if part["device"].startswith("rpc:"):
            assert 0 < part["measured_bytes"] <= 65 * MIB
            assert abs(part["measured_bytes"] - part["predicted_bytes"]) < 8 * MIB


def test_a_dead_server_is_named_and_the_model_goes_where_it_still_can(
    start: Start, three: list[RpcServer]
) -> None:
    three[1].kill()
    daemon = start(config=config(three, limit_mib=80), environ={"GGML_VK_VISIBLE_DEVICES": ""})
    model = httpx.get(f"{daemon.base}/v1/models").json()["data"][0]["id"]

    told = daemon.ctl("plan", model).stdout

    assert f"- RPC server {three[1].address}: it does not answer" in told
    assert daemon.ctl("load", model).returncode == 0
    (instance,) = daemon.status()["instances"]
    used = {device for device, _ in _layers(instance)}
    assert used == {f"rpc:{three[0].address}", f"rpc:{three[2].address}"}


def test_a_plan_leaves_servers_in_use_alone_and_they_outlive_their_client(
    start: Start, three: list[RpcServer]
) -> None:
    daemon = start(config=config(three[:2], limit_mib=80), environ={"GGML_VK_VISIBLE_DEVICES": ""})
    model = httpx.get(f"{daemon.base}/v1/models").json()["data"][0]["id"]
    assert daemon.ctl("load", model).returncode == 0
    time.sleep(ASK_EVERY_S + 1)  # until the next look would ask the servers again

    told = daemon.ctl("plan", model).stdout
    daemon.ctl("unload", model)
    deadline_s = time.monotonic() + 20
    while daemon.status()["instances"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)

    assert "does not answer" not in told
    assert daemon.ctl("load", model).returncode == 0
    (instance,) = daemon.status()["instances"]
    assert {device for device, _ in _layers(instance)} == {f"rpc:{s.address}" for s in three[:2]}


def _layers(instance: dict[str, object]) -> list[tuple[str, int]]:
    """(device, layers) of a running instance."""
    devices = instance["devices"]
    assert isinstance(devices, list)
    return [(one["device"], one["layers"]) for one in devices]
