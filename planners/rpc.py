"""Devices of ggml-rpc-servers: their ids, and what an engine calls them. Pure.

An engine numbers the devices of all servers in its `--rpc` through: RPC0, RPC1 … A server that does
not answer is left out without a word, and every later device takes the number before. So a launch
names only the servers that it uses: a missing one is then an unknown device, and no other takes
its place.
"""

import re
from collections.abc import Sequence

from planners.hardware import DeviceId, HardwareProfile

ID_PREFIX = "rpc:"
NAME_PREFIX = "RPC"
_BUFFER = re.compile(r"RPC(\d{1,4})\[([^\]]{1,300})\]")


def device_id(server: str, index: int) -> DeviceId:
    """The id of a server's device: "rpc:10.0.0.2:50052", of a further one "rpc:…:50052#1"."""
    return DeviceId(f"{ID_PREFIX}{server}#{index}" if index else f"{ID_PREFIX}{server}")


def server_of(device: DeviceId) -> str | None:
    """HOST:PORT of the server that has the device; None for any other device."""
    if not device.startswith(ID_PREFIX):
        return None
    return device.removeprefix(ID_PREFIX).partition("#")[0]


def servers_of(
    hardware: HardwareProfile, used: Sequence[DeviceId]
) -> tuple[tuple[str, ...], dict[DeviceId, str]]:
    """The servers that have the `used` devices, in order, and the name of each of their devices."""
    wanted = {server for device in used if (server := server_of(device)) is not None}
    named: dict[DeviceId, str] = {}
    servers: dict[str, None] = {}
    for device in hardware.devices:
        server = server_of(device.device_id)
        if server in wanted and server is not None and device.engine_names:
            servers[server] = None
            named[device.device_id] = f"{NAME_PREFIX}{len(named)}"
    return tuple(servers), named


def device_of_buffer(name: str) -> DeviceId | None:
    """The device of a buffer as the engine logs it, "RPC0[10.0.0.2:50052]"; None for any other.

    The number counts that server's devices, whatever `--device` calls them.
    """
    match = _BUFFER.fullmatch(name)
    return device_id(match[2], int(match[1])) if match else None
