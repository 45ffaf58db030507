"""How many connections there may be at once, in all and from one address. Knows no socket.

uvicorn has a limit of its own, but counts connections of whoever came first: one address that
opens them all would leave none for the others.
"""

import math
from collections import Counter
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

import structlog
from msgspec import Struct

log = structlog.get_logger(__name__)


class CrowdLimits(Struct, frozen=True):
    """Connections at once. Defaults are config.py's business."""

    in_all: int
    per_address: int
    """Not of this machine's own, whose clients, and reverse proxies, open many."""


UNLIMITED = CrowdLimits(in_all=1 << 30, per_address=1 << 30)


TOLD_S = 60.0  # between two lines of the log about it
WINDOW_S = 1.0
ANSWERS = 256  # to those turned away, per window: each holds its socket for a second more


class Crowd:
    """Those who are connected now."""

    def __init__(self, limits: CrowdLimits, *, window_s: float = WINDOW_S) -> None:
        self.limits = limits
        self._every_s = window_s
        self._by_origin: Counter[str] = Counter()
        self._in_all = 0
        self._turned_away = self._told_away = 0
        self._window_s = self._told_s = -math.inf

    def __len__(self) -> int:
        return self._in_all

    def enter(self, address: str) -> bool:
        """Counts one more; False, and not counted, where it is one too many."""
        origin = _origin(address)
        is_full = self._in_all >= self.limits.in_all
        if is_full or (origin and self._by_origin[origin] >= self.limits.per_address):
            return False
        self._in_all += 1
        if origin:
            self._by_origin[origin] += 1
        return True

    def turn_away(self, now_s: float) -> bool:
        """Notes one who was not let in; True where there is time to tell it why."""
        self._turned_away += 1
        if now_s - self._told_s >= TOLD_S:
            self._told_s = now_s
            log.warning("door.crowded", connections=self._in_all, turned_away=self._turned_away)
            self._turned_away = 0
        if now_s - self._window_s >= self._every_s:
            self._window_s, self._told_away = now_s, 0
        self._told_away += 1
        return self._told_away <= ANSWERS

    def leave(self, address: str) -> None:
        """Of one that was let in."""
        origin = _origin(address)
        self._in_all -= 1
        if origin:
            self._by_origin[origin] -= 1
            if not self._by_origin[origin]:
                del self._by_origin[origin]  # else each address ever seen would stay


@lru_cache(maxsize=1024)
def _origin(address: str) -> str:
    """Who is counted: an address, a network of IPv6; "" for this machine and for Unix sockets.

    One subscriber has a /64 of IPv6 and as many addresses as it likes.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return _origin(str(ip.ipv4_mapped))
        return "" if ip.is_loopback else str(IPv6Address(int(ip) >> 64 << 64))
    return "" if ip.is_loopback else str(ip)
