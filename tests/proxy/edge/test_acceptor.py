"""proxy.edge.acceptor: callers while descriptors are short, in a process with a small limit."""

import json
import subprocess
import sys

import pytest

from proxy.edge.acceptor import FULL_S

PROGRAM = """
import asyncio, json, os, resource, socket, sys
import uvloop
from proxy.edge.acceptor import Acceptor

class Echo(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(data)

class Counting(socket.socket):
    tries = 0
    def accept(self):
        Counting.tries += 1
        return super().accept()

def filled():
    held = []
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return held

async def main():
    listener = Counting()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    callers = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    for caller in callers:
        caller.sendall(b"hello")
        caller.setblocking(False)
    loop = asyncio.get_running_loop()
    soft = len(os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
    held = filled()
    acceptor = Acceptor(Echo, listener)
    await asyncio.sleep(1.0)  # which a spin would fill with tries
    tries = Counting.tries
    os.close(held.pop())  # one is taken in, and it is full again
    async with asyncio.timeout(10):
        await loop.sock_recv(callers[0], 9)
    callers[0].sendall(b"hello")
    await asyncio.sleep(0.6)
    for descriptor in held:
        os.close(descriptor)
    async with asyncio.timeout(10):
        answers = [(await loop.sock_recv(caller, 9)).decode() for caller in callers]
    address = callers[0].getpeername()
    acceptor.close()
    acceptor.close()
    try:
        socket.create_connection(address, timeout=1)
        closed = False
    except ConnectionRefusedError:
        closed = True
    print(json.dumps({"answers": answers, "tries": tries, "closed": closed}))

(uvloop.run if sys.argv[1] == "uvloop" else asyncio.run)(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it counts its descriptors in /proc")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_callers_for_whom_no_descriptor_is_left_wait_without_a_spin_and_are_served(
    loop: str,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, loop],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr

    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["answers"] == ["hello"] * 3
    assert told["closed"]
    assert 0 < told["tries"] <= 1.0 / FULL_S + 1
    assert ran.stdout.count("door.full") == 1
