"""Is a busy child at work? What was seen of it in, a verdict out: alive, slow, or hung.

A slow child is one that computes, reads its disk or steps through a prompt, however long it takes.
A hung one shows none of that, or computes on for a caller who has left: between two steps it would
have noticed. /health alone proves little: its thread outlives a stuck decode.
"""

from msgspec import Struct
from msgspec.structs import replace

from planners.plan import LaunchPlan

SAMPLE_S = 2.5  # cadence while busy; below 2 s, /slots keeps the engine from seeing callers leave
ANSWER_S = 2.0  # /health is answered within a millisecond by a thread that does nothing else
FROZEN_S = 10.0  # neither /health nor processor time: stopped by a signal, or by the kernel
SPIN_TIMES = 10.0  # the bound of one that computes and gets nowhere, in hang_s
BATCHES = 10.0  # a plan's own prediction may be wrong by that much before its device is suspect
WORKING_CORES = 0.05  # an engine that only answers /health and /slots takes a tenth of it

Steps = tuple[tuple[int, ...], ...]
"""What each slot counts: its task, tokens of the prompt read, tokens of the answer written."""


class Signs(Struct, frozen=True):
    """What was seen of a busy child at one moment."""

    at_s: float
    """Monotonic."""
    heard_bytes: int
    """Of replies, since it started; keep-alive comments excluded."""
    cpu_s: float
    """Processor time it has used."""
    disk_reads: int
    """A count that grows with each page or block it reads."""
    is_runnable: bool
    """It runs, or waits for a processor that others hold."""
    is_answering: bool
    """/health was answered, or a reply is coming in."""
    steps: Steps | None
    """None where /slots was not asked, or not answered in time."""
    busy_slots: int | None
    departures: int
    """A count of the callers who left before their answer's end."""


class HangLimits(Struct, frozen=True):
    """How long a busy child may show nothing of each kind, in seconds."""

    hang_s: float
    """No progress and no work."""
    spin_s: float
    """No progress, at work or not."""
    left_s: float
    """No step, since a caller left; of processor time as of the clock, so the starved have more."""
    frozen_s: float
    """No answer to /health and no work."""
    sample_s: float
    answer_s: float

    @property
    def late_s(self) -> float:
        """Between two samples; beyond it the watcher itself did not run, and has seen nothing."""
        return 4 * (self.sample_s + 2 * self.answer_s)


class Course(Struct, frozen=True):
    """What is known of a child since it became busy."""

    last: Signs
    steps: Steps | None
    """The last that were told."""
    progressed_s: float
    worked_s: float
    answered_s: float
    is_left: bool = False
    """It computes, and has shown no step since a caller left: it may not know yet."""
    spun_s: float = 0.0
    """How long it has computed like that, /slots silent."""


class Alive(Struct, frozen=True):
    """It gets on, or has nothing to do."""


class Slow(Struct, frozen=True):
    """It is at work, though nothing has come of it for a while."""

    silent_s: float


class Hung(Struct, frozen=True):
    """It will not get on; the reason is the evidence."""

    reason: str


Verdict = Alive | Slow | Hung


def hang_limits(plan: LaunchPlan, *, hang_s: float) -> HangLimits:
    """The limits for one launch: the operator's, and longer where its own batches take longer.

    What another machine computes for us takes no processor time here: then only progress counts.
    How long a step may take is known only where its plan predicts all that there is to compute.
    """
    rate = plan.predicted_prompt_tokens_per_s
    batch_s = plan.n_batch / rate if rate else 0.0
    hang_s = max(hang_s, BATCHES * batch_s)
    spin_s = SPIN_TIMES * hang_s
    frozen_s = min(FROZEN_S, hang_s)
    is_foreseen = bool(rate) and plan.mmproj_path is None and not plan.rpc_servers
    return HangLimits(
        hang_s=spin_s if plan.rpc_servers else hang_s,
        spin_s=spin_s,
        left_s=hang_s if is_foreseen else spin_s,
        frozen_s=frozen_s,
        sample_s=min(SAMPLE_S, frozen_s / 4),
        answer_s=min(ANSWER_S, frozen_s / 4),
    )


def begun(signs: Signs) -> Course:
    """The course of a child that has just become busy."""
    at_s = signs.at_s
    return Course(signs, signs.steps, progressed_s=at_s, worked_s=at_s, answered_s=at_s)


def continued(course: Course, signs: Signs, *, limits: HangLimits) -> Course:
    """The course with one more sample."""
    last, at_s = course.last, signs.at_s
    elapsed_s = at_s - last.at_s
    if elapsed_s > limits.late_s:
        return begun(signs)
    is_starved = signs.is_runnable and not signs.is_answering
    computes = is_starved or signs.cpu_s - last.cpu_s >= WORKING_CORES * elapsed_s
    reads = signs.disk_reads > last.disk_reads
    steps = course.steps if signs.steps is None else signs.steps
    has_stepped = course.steps is not None and steps != course.steps
    is_free = signs.busy_slots == 0  # its callers are slow to read, or have not asked yet
    gets_on = signs.heard_bytes != last.heard_bytes or has_stepped or is_free
    has_left = signs.departures != last.departures  # before or after what has got on
    is_left = (has_left or (course.is_left and not gets_on)) and computes and not is_free
    spins = is_left and not gets_on and signs.steps is None
    spun_s = min(elapsed_s, signs.cpu_s - last.cpu_s) if spins else 0.0
    return replace(
        course,
        last=signs,
        steps=steps,
        progressed_s=at_s if gets_on else course.progressed_s,
        worked_s=at_s if gets_on or computes or reads else course.worked_s,
        answered_s=at_s if signs.is_answering else course.answered_s,
        is_left=is_left,
        spun_s=course.spun_s + spun_s if spins else 0.0,
    )


def resumed(course: Course, signs: Signs) -> Course:
    """The course of a child that is busy again, after a rest that counts for nothing.

    Where no reply came in meanwhile, its earlier silence still counts: callers who give up one by
    one would else hide a child that hangs.
    """
    if signs.heard_bytes != course.last.heard_bytes:
        return begun(signs)
    rest_s = signs.at_s - course.last.at_s
    return replace(
        course,
        last=signs,
        progressed_s=course.progressed_s + rest_s,
        worked_s=course.worked_s + rest_s,
        answered_s=course.answered_s + rest_s,
    )


def verdict(course: Course, *, limits: HangLimits) -> Verdict:
    """What the course says of the child now."""
    at_s = course.last.at_s
    silent_s, idle_s = at_s - course.progressed_s, at_s - course.worked_s
    mute_s = at_s - course.answered_s
    if min(mute_s, idle_s) >= limits.frozen_s:
        return Hung(
            f"for {min(mute_s, idle_s):.0f} s it has neither answered /health nor used the"
            " processor: it is stopped, or stuck in the kernel"
        )
    if min(silent_s, idle_s) >= limits.hang_s:
        return Hung(
            f"for {min(silent_s, idle_s):.0f} s no token came, no slot moved on and next to no"
            " processor time was used, though it has work and /health answers"
        )
    if course.spun_s >= limits.left_s:
        return Hung(
            f"for {course.spun_s:.0f} s it has computed without a step, and not let go of the"
            " request of a caller who left"
        )
    if silent_s >= limits.spin_s:
        return Hung(f"for {silent_s:.0f} s it has computed without a token or a step of a prompt")
    if silent_s > 2 * limits.sample_s:
        return Slow(silent_s)
    return Alive()
