"""What systemd and we tell each other: readiness, watchdog, and sockets it opened for us.

Protocol: sd_notify(3), sd_listen_fds(3). Everything is a no-op without a service manager.
"""

import os
import socket
from collections.abc import Mapping

FIRST_PASSED_FD = 3  # SD_LISTEN_FDS_START


class ServiceManager:
    """The one we run under, or none."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._environ = environ

    @property
    def watchdog_s(self) -> float | None:
        """Half of the time within which it wants to hear from us (sd_watchdog_enabled(3))."""
        told = self._environ.get("WATCHDOG_USEC", "")
        meant = self._environ.get("WATCHDOG_PID", str(os.getpid()))
        if not told.isdecimal() or not int(told) or meant != str(os.getpid()):
            return None
        return int(told) / 1e6 / 2

    def tell(self, *assignments: str) -> None:
        """Send "READY=1", "STATUS=…", "STOPPING=1"; where nobody listens, nothing happens."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            try:
                out.sendto("\n".join(assignments).encode(), address)
            except OSError:
                return  # the manager restarts, or its queue is full: the next message counts

    def passed_sockets(self) -> tuple[socket.socket, ...]:
        """Listening sockets that were opened for us, made non-inheritable; () where none were."""
        count = self._environ.get("LISTEN_FDS", "")
        if self._environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
            return ()
        numbers = range(FIRST_PASSED_FD, FIRST_PASSED_FD + min(int(count), 16))
        for number in numbers:
            os.set_inheritable(number, False)
        return tuple(socket.socket(fileno=number) for number in numbers)
