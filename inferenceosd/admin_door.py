"""What operators come in by: a socket's file, which is made anew where somebody removed it.

Knows nothing of what is asked there: see proxy.admin.
"""

import asyncio
import socket
from pathlib import Path

import structlog

from inferenceosd.control import Control
from inferenceosd.door.listening import CannotListen, file_key, listen_privately
from inferenceosd.lean_imports import lean_imports
from proxy.app import ASGIApp
from proxy.edge.protocol import Patience
from proxy.edge.server import serve
from supervisor.race import found_first

LOOK_S = 2.0  # cadence of looking whether the file is still there: one stat call
MOST_STOPPING_S = 15.0  # of a child, once its drain is over
OPERATORS = Patience(stall_s=24 * 3600.0)  # may leave `inferenceosctl logs -f` in a pager

log = structlog.get_logger(__name__)


class AdminDoor:
    """One door, whichever socket it is at."""

    def __init__(self, path: Path, sock: socket.socket, control: Control) -> None:
        """`sock` listens at `path` already."""
        self._path, self._sock, self._control = path, sock, control

    async def open(self, tasks: asyncio.TaskGroup, *, closing: asyncio.Event) -> asyncio.Task[None]:
        """Accept operators until `closing`; the door's task."""
        with lean_imports():  # late: callers need not wait for what operators ask with
            from proxy.admin.routes import build_admin_app
        opened = asyncio.Event()
        serving = self._serve(build_admin_app(self._control), closing=closing, opened=opened)
        task = tasks.create_task(serving, name="admin door")
        await opened.wait()
        return task

    async def _serve(self, app: ASGIApp, *, closing: asyncio.Event, opened: asyncio.Event) -> None:
        sock = self._sock
        async with asyncio.TaskGroup() as doors:
            while not closing.is_set():
                stop = asyncio.Event()
                door = serve(
                    app, (sock,), stop=stop, started=opened, drain_s=self._stopping_s,
                    patience=OPERATORS,
                )  # fmt: skip
                doors.create_task(door, name="admin door")
                reopened = await found_first(self._reopened(), closing.wait())
                stop.set()  # after the new one listens: nobody finds the door closed
                sock = reopened or sock

    def _stopping_s(self) -> float:
        # Later than the children: who follows the events hears how each of them ended.
        return self._control.config.fleet.drain_s + MOST_STOPPING_S

    async def _reopened(self) -> socket.socket:
        """The socket once more, when its file is gone or another's."""
        was, why = file_key(self._path), ""
        while True:
            await asyncio.sleep(LOOK_S)
            if was is not None and file_key(self._path) == was:
                continue
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                sock = listen_privately(self._path)
            except (CannotListen, OSError) as exc:
                if str(exc) != why:
                    log.warning("admin.closed", reason=str(exc))
                why = str(exc)
                continue
            log.warning("admin.reopened", path=str(self._path))
            return sock
