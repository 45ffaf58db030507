"""Looks at one child while leases are held on it, and tells when it hangs. Idle, it costs nothing.

Where a caller left before the end, it looks on until the child is seen to have let go of that one.

What the signs mean is decided by planners.instances.progress.
"""

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog
from msgspec.structs import replace

from planners.instances.progress import (
    Course,
    HangLimits,
    Hung,
    Signs,
    Slow,
    begun,
    continued,
    resumed,
    verdict,
)
from planners.plan import InstanceId
from supervisor.children.launch import CUT_OFF, DEAF, Launch
from supervisor.children.llama import answers, client_of, slots_told
from supervisor.children.pulse import work_of
from supervisor.leases.lease_book import LeaseBook
from supervisor.race import found_first

log = structlog.get_logger(__name__)

DYING_S = 1.0  # a process that dies has closed its socket a moment before it is gone


class HangWatch:
    """Of one launch that is ready. `until_hung` may be awaited again: it goes on where it was."""

    def __init__(
        self,
        launch: Launch,
        instance_id: InstanceId,
        *,
        book: LeaseBook,
        heard_bytes: Callable[[str], int],
        limits: Callable[[], HangLimits],
    ) -> None:
        self._launch, self._instance_id, self._book = launch, instance_id, book
        self._heard_bytes, self._limits = heard_bytes, limits
        self._course: Course | None = None
        self._why_unreached = CUT_OFF
        self._is_unreached = asyncio.Event()

    def missed(self) -> None:
        """A caller could not reach the child: where nobody can, it is of no use."""
        if not self._launch.is_cut_off and not self._launch.is_deaf:
            return
        self._why_unreached = CUT_OFF if self._launch.is_cut_off else DEAF
        self._is_unreached.set()

    async def until_hung(self) -> Hung:
        """The evidence, once the child hangs."""
        stuck = await found_first(self._until_stuck(), self._until_unreached())
        return stuck or Hung(self._why_unreached)

    async def _until_unreached(self) -> None:
        await self._is_unreached.wait()
        if self._why_unreached == DEAF:
            await asyncio.sleep(DYING_S)

    async def _until_stuck(self) -> Hung:
        while True:
            await self._book.until_busy(self._instance_id)
            if (hung := await self._watched_while_busy()) is not None:
                return hung

    async def _watched_while_busy(self) -> Hung | None:
        is_first, was_slow = True, False
        while self._book.running(self._instance_id) or self._is_left_at_work():
            limits = self._limits()
            if (signs := await self._signs(is_first=is_first)) is not None:
                course = self._course = self._with(signs, is_first=is_first, limits=limits)
                is_first = False
                found = verdict(course, limits=limits)
                if isinstance(found, Hung):
                    return found
                silent_s = found.silent_s if isinstance(found, Slow) else 0.0
                if silent_s >= limits.hang_s and not was_slow:
                    self._tell_slow(silent_s)
                was_slow = silent_s >= limits.hang_s
            await asyncio.sleep(limits.sample_s)  # a cadence
        return None

    def _is_left_at_work(self) -> bool:
        course = self._course
        departures = self._book.departures(self._instance_id)
        return course is not None and (course.is_left or departures != course.last.departures)

    def _tell_slow(self, silent_s: float) -> None:
        model_id = self._launch.plan.model_id
        silent_s = round(silent_s, 1)
        log.info(
            "instance.slow", model_id=model_id, instance_id=self._instance_id, silent_s=silent_s
        )

    def _with(self, signs: Signs, *, is_first: bool, limits: HangLimits) -> Course:
        if self._course is None:
            return begun(signs)
        if is_first:
            return resumed(self._course, signs)
        return continued(self._course, signs, limits=limits)

    async def _signs(self, *, is_first: bool) -> Signs | None:
        """What is to be seen now; the child is asked only while no reply comes in.

        None where the kernel tells nothing, which proves nothing.
        """
        quick = self._quick_signs()  # its work is read before it is asked: answering is work, too
        if quick is None or is_first or self._course is None:
            return quick
        if quick.heard_bytes != self._course.last.heard_bytes:
            return quick
        answer_s = self._limits().answer_s
        async with client_of(self._launch.socket_path, timeout_s=answer_s) as client:
            is_answering = await answers(client)
            told = await slots_told(client) if is_answering else None
        return replace(
            quick,
            is_answering=is_answering,
            steps=told.steps if told is not None else None,
            busy_slots=told.busy if told is not None else None,
        )

    def _quick_signs(self) -> Signs | None:
        pid = self._launch.pid
        work = None if pid is None else work_of(pid)
        if work is None:
            return None
        return Signs(
            at_s=monotonic(),
            heard_bytes=self._heard_bytes(self._launch.socket_path),
            cpu_s=work.cpu_s,
            disk_reads=work.disk_reads,
            is_runnable=work.is_runnable,
            is_answering=True,
            steps=None,
            busy_slots=None,
            departures=self._book.departures(self._instance_id),
        )
