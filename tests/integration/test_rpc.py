"""Tensor split over ggml-rpc-servers, by the daemon as it is started."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import httpx
import pytest

from scripts.started_daemon import StartedDaemon
from supervisor.devices.rpc import ASK_EVERY_S, NO_WORD
from supervisor.devices.rpc_protocol import CAPS_BYTES, HELLO, LENGTH
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


def test_the_host_holds_what_was_planned_of_a_mapped_file_beside_two_servers(
    start: Start, three: list[RpcServer]
) -> None:
    text = config(three[:2], limit_mib=45)  # too little for all layers
    daemon = start(config=text, environ={"GGML_VK_VISIBLE_DEVICES": ""})
    model = httpx.get(f"{daemon.base}/v1/models").json()["data"][0]["id"]

    assert daemon.ctl("load", model).returncode == 0

    (instance,) = daemon.status()["instances"]
    assert 0 < sum(layers for _, layers in _layers(instance)) < 31
    for part in instance["memory"]:
        assert abs(part["measured_bytes"] - part["predicted_bytes"]) < MIB


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


def test_a_server_that_never_answers_delays_no_chat_and_is_named(
    start: Start, three: list[RpcServer]
) -> None:
    plain = start(environ={"GGML_VK_VISIBLE_DEVICES": ""})
    without_s = _seconds_to_chat(plain)
    with closing(socket.create_server(("127.0.0.1", 0))) as hung:
        address = f"127.0.0.1:{hung.getsockname()[1]}"
        text = f'[rpc]\nservers = ["{address}"]\n'
        daemon = start(config=text, environ={"GGML_VK_VISIBLE_DEVICES": ""})

        with_s = _seconds_to_chat(daemon)
        told = _until(daemon, lambda degraded: bool(degraded))

    assert with_s < without_s + 5.0  # an engine that asked it was given 10 s
    assert told == [f"RPC server {address} is missing: {NO_WORD}"]


def test_a_limited_server_that_dies_degrades_the_machine_until_it_is_back(
    start: Start, three: list[RpcServer]
) -> None:
    server = three[0]
    daemon = start(config=config([server], limit_mib=80), environ={"GGML_VK_VISIBLE_DEVICES": ""})
    assert _until(daemon, lambda degraded: not degraded) == []

    server.kill()
    dead = _until(daemon, lambda degraded: bool(degraded))
    with rpc_server(port=int(server.address.rpartition(":")[2])):
        _until(daemon, lambda degraded: not degraded)
        told = daemon.ctl("events").stdout

    assert dead[0].startswith(f"RPC server {server.address} is missing: cannot be reached")
    assert "machine.degraded" in told
    assert "machine.recovered" in told


def test_a_server_outlives_a_daemon_that_asks_while_it_works_for_somebody_else(
    start: Start, three: list[RpcServer]
) -> None:
    server = three[0]
    host, _, port = server.address.rpartition(":")
    with closing(socket.create_connection((host, int(port)), timeout=20)) as client:
        client.sendall(bytes((HELLO,)) + LENGTH.pack(CAPS_BYTES) + bytes(CAPS_BYTES))
        assert client.recv(64)
        text = config([server], limit_mib=80)
        killed = start(config=text, environ={"GGML_VK_VISIBLE_DEVICES": ""})
        _until(killed, lambda degraded: bool(degraded))
        killed.process.kill()
        killed.process.wait()
        daemon = start(config=text, environ={"GGML_VK_VISIBLE_DEVICES": ""})
        busy = _until(daemon, lambda degraded: bool(degraded))

        client.close()
        _until(daemon, lambda degraded: not degraded)

    assert busy == [f"RPC server {server.address} is missing: {NO_WORD}"]
    assert server.process.poll() is None


def _seconds_to_chat(daemon: StartedDaemon) -> float:
    begun_s = time.monotonic()
    model = httpx.get(f"{daemon.base}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    reply = httpx.post(f"{daemon.base}/v1/chat/completions", json=body, timeout=60)
    assert reply.json()["usage"]["completion_tokens"] > 0
    return time.monotonic() - begun_s


def _until(daemon: StartedDaemon, is_wished: Callable[[list[str]], bool]) -> list[str]:
    """Why the machine is DEGRADED, once that is as wished."""
    deadline_s = time.monotonic() + 40
    degraded: list[str]
    while not is_wished(degraded := daemon.status()["degraded"]):
        assert time.monotonic() < deadline_s, degraded
        time.sleep(0.1)
    return degraded


def _layers(instance: dict[str, object]) -> list[tuple[str, int]]:
    """(device, layers) of a running instance."""
    devices = instance["devices"]
    assert isinstance(devices, list)
    return [(one["device"], one["layers"]) for one in devices]
