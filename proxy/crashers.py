"""Requests that crash llama-server by themselves: each is refused alone, the model is not.

Only what crashed a child that did nothing else is held against a request, twice, and only for a
while and by the same launch: whoever was merely there, or came in bad times, is not blamed.
"""

from collections import OrderedDict
from hashlib import blake2b

from msgspec import Struct

from planners.durations import format_duration
from proxy.errors import BadRequest
from supervisor.leases.lease import Lease

CRASHES = 2  # one may be chance
REFUSED_S = 600.0  # after its last crash; an engine that was mended in place is found out by then
MOST_KEPT = 256


class CrashesEngine(BadRequest):
    """The same request has crashed llama-server before, each time alone."""

    status = 422
    code = "request_crashes_engine"

    def __init__(self, *, model: str, times: int, cause: str, refused_s: float) -> None:
        self.model, self.times, self.cause = model, times, cause
        super().__init__(
            f"this very request has crashed {model} {times} times, with no other request under way"
            f" ({cause}); it is refused for {format_duration(refused_s)}, or until the model's"
            " engine or launch settings change"
        )


class _Record(Struct, frozen=True):
    times: int
    last_s: float
    cause: str


class Crashers:
    """Of one daemon. What is kept of a request is a digest."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Record] = OrderedDict()

    def note(self, lease: Lease, target: bytes, body: bytes, *, cause: str, now_s: float) -> None:
        """The child behind `lease` crashed on this request and did nothing else."""
        key = _key(lease, target, body)
        before = self._kept.pop(key, None)
        times = before.times + 1 if before and now_s - before.last_s < REFUSED_S else 1
        self._kept[key] = _Record(times, now_s, cause)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def check(self, lease: Lease, target: bytes, body: bytes, *, now_s: float) -> None:
        """Raises CrashesEngine where it is known to."""
        if not self._kept:  # as nearly always: nothing is digested
            return
        found = self._kept.get(_key(lease, target, body))
        if found is None or found.times < CRASHES:
            return
        left_s = found.last_s + REFUSED_S - now_s
        if left_s > 0:
            raise CrashesEngine(
                model=lease.model_id, times=found.times, cause=found.cause, refused_s=left_s
            )


def _key(lease: Lease, target: bytes, body: bytes) -> bytes:
    launch = "" if lease.plan is None else lease.plan.digest
    head = b"\0".join((lease.model_id.encode(), launch.encode(), target, b""))
    return blake2b(head + body, digest_size=16).digest()
