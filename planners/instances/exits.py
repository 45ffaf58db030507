"""Why a llama-server child ended: its return code and its last log lines in, a Cause out."""

import re
import signal
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

_LONGEST_LINE = 1000  # searched of a line, so that a flood costs no more than it must
_LONGEST_TOLD = 300
_PREFIX = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [A-Z] +")  # "0.00.224.706 I "


class ExitKind(Enum):
    """What an exit means for what comes next."""

    WANTED = "wanted"
    DEVICE_OOM = "device_oom"
    HOST_OOM = "host_oom"
    BAD_MODEL = "bad_model"
    BAD_FLAG = "bad_flag"
    CANNOT_BIND = "cannot_bind"
    ILLEGAL_INSTRUCTION = "illegal_instruction"
    MISSING_LIBRARY = "missing_library"
    MISSING_ENGINE = "missing_engine"
    """Its program is not there, or may not be run: it may be back in a moment, as in an upgrade."""
    DEVICE_LOST = "device_lost"
    HUNG = "hung"
    KILLED = "killed"
    """By whom is not known: it may have been the kernel, for want of memory."""
    KILLED_BY_PROCESS = "killed_by_process"
    """The kernel killed nobody for want of memory meanwhile."""
    CRASH = "crash"
    BUG = "bug"
    """Ours, not the child's."""


_LASTING = frozenset(
    {
        ExitKind.BAD_MODEL,
        ExitKind.BAD_FLAG,
        ExitKind.ILLEGAL_INSTRUCTION,
        ExitKind.MISSING_LIBRARY,
    }
)
OUT_OF_MEMORY = frozenset({ExitKind.DEVICE_OOM, ExitKind.HOST_OOM})


class Cause(Struct, frozen=True):
    """One exit, explained."""

    kind: ExitKind
    summary: str
    """One sentence for the operator, with the signal or code and the telling log line."""
    returncode: int | None
    log_tail: tuple[str, ...]


class _Sign(Struct, frozen=True):
    """A log line that tells a cause."""

    kind: ExitKind
    pattern: re.Pattern[str]


def _sign(kind: ExitKind, pattern: str) -> _Sign:
    return _Sign(kind, re.compile(pattern, re.IGNORECASE))


# Most telling first: an out-of-memory is followed by "failed to load model", never the reverse.
# Lines of llama-server b10434; those of CUDA, HIP and Metal are from the source, b11434.
_SIGNS = (
    _sign(ExitKind.MISSING_LIBRARY, r"error while loading shared libraries: "),
    _sign(ExitKind.MISSING_LIBRARY, r"Library not loaded: "),
    _sign(ExitKind.BAD_FLAG, r"error: invalid argument: "),
    _sign(ExitKind.BAD_FLAG, r"(error )?while handling argument "),
    _sign(ExitKind.CANNOT_BIND, r"couldn't bind HTTP server socket"),
    _sign(ExitKind.DEVICE_LOST, r"device lost|ErrorDeviceLost|GPU is lost|fallen off the bus"),
    _sign(ExitKind.DEVICE_LOST, r"Remote RPC server crashed or returned malformed response"),
    _sign(ExitKind.DEVICE_LOST, r"CUDA error: (unspecified launch failure|an illegal memory)"),
    _sign(ExitKind.DEVICE_OOM, r"ErrorOutOfDeviceMemory"),
    _sign(ExitKind.DEVICE_OOM, r"Device memory allocation of size \d+ failed"),
    _sign(ExitKind.DEVICE_OOM, r"(CUDA|HIP|ROCm) error: out of memory"),
    _sign(ExitKind.DEVICE_OOM, r"cudaMalloc failed: out of memory"),
    _sign(ExitKind.DEVICE_OOM, r"kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    _sign(
        ExitKind.DEVICE_OOM,
        r"failed to allocate (?!CPU|\w+_Host\b)\w+(\[[^\]]*\])? buffer of size \d+",
    ),
    _sign(ExitKind.HOST_OOM, r"ggml_aligned_malloc: insufficient memory "),
    _sign(ExitKind.HOST_OOM, r"failed to allocate (CPU\w*|\w+_Host) buffer of size \d+"),
    _sign(ExitKind.HOST_OOM, r"std::bad_alloc"),
    _sign(ExitKind.HOST_OOM, r"Cannot allocate memory"),
    _sign(ExitKind.BAD_MODEL, r"failed to open GGUF file "),
    _sign(ExitKind.BAD_MODEL, r"invalid magic characters"),
    _sign(ExitKind.BAD_MODEL, r"failed to read (magic|key-value pairs|tensor info)"),
    _sign(ExitKind.BAD_MODEL, r"this GGUF file is version \d+ but"),
    _sign(ExitKind.BAD_MODEL, r"error loading model: "),
    _sign(ExitKind.BAD_MODEL, r"error loading model architecture: "),
)

_BY_SIGNAL = {
    signal.SIGILL: (ExitKind.ILLEGAL_INSTRUCTION, "the engine was built for another processor"),
    signal.SIGKILL: (
        ExitKind.KILLED,
        "killed from outside, as the kernel does when memory runs out",
    ),
    signal.SIGBUS: (ExitKind.CRASH, "its model file was cut or its disk failed while mapped"),
}

_MEANING = {
    ExitKind.DEVICE_OOM: "out of device memory",
    ExitKind.HOST_OOM: "out of host memory",
    ExitKind.BAD_MODEL: "the model file cannot be loaded",
    ExitKind.BAD_FLAG: "the engine refused an option",
    ExitKind.CANNOT_BIND: "its socket could not be bound",
    ExitKind.MISSING_LIBRARY: "the engine lacks a library",
    ExitKind.DEVICE_LOST: "a device was lost",
}


def is_hopeless(kind: ExitKind, *, had_answered: bool) -> bool:
    """True where the same plan and file can only end so again.

    What had answered can run: its illegal instruction was a trap that a request sprang.
    """
    return kind is ExitKind.BUG or (kind in _LASTING and not had_answered)


def classify(
    returncode: int | None,
    log_tail: Sequence[str],
    *,
    wanted: bool,
    kernel_kills: int | None = None,
) -> Cause:
    """What an exit means. `returncode` is negative for signals, None where nobody waited for it.

    `kernel_kills`: processes that the kernel killed for want of memory while it ran; None where
    nobody tells.

    The code alone says little: every failed load ends in 1, so the lines decide, and among them
    the most telling one.
    """
    tail = tuple(log_tail)
    ending = _ending(returncode)
    if wanted:
        return Cause(ExitKind.WANTED, f"stopped as asked ({ending})", returncode, tail)
    if returncode == -signal.SIGKILL and kernel_kills == 0:
        meaning = "another process killed it, not the kernel for want of memory"
        return Cause(ExitKind.KILLED_BY_PROCESS, f"{meaning} ({ending})", returncode, tail)
    if returncode is not None and -returncode in (signal.SIGILL, signal.SIGKILL):
        kind, meaning = _BY_SIGNAL[signal.Signals(-returncode)]
        return Cause(kind, f"{meaning} ({ending})", returncode, tail)
    if (told := _told(tail)) is not None:
        kind, line = told
        return Cause(kind, f"{_MEANING[kind]}: {line} ({ending})", returncode, tail)
    if returncode is not None and -returncode in _BY_SIGNAL:
        kind, meaning = _BY_SIGNAL[signal.Signals(-returncode)]
        return Cause(kind, f"{meaning} ({ending})", returncode, tail)
    return Cause(ExitKind.CRASH, _crash(returncode, ending, tail), returncode, tail)


def _told(tail: tuple[str, ...]) -> tuple[ExitKind, str] | None:
    """The kind and the text of the most telling line, the latest among equals."""
    recent = [line[:_LONGEST_LINE] for line in tail[::-1]]
    for sign in _SIGNS:
        for line in recent:
            if sign.pattern.search(line) is not None:
                return sign.kind, _PREFIX.sub("", line).strip()[:_LONGEST_TOLD]
    return None


def _crash(returncode: int | None, ending: str, tail: tuple[str, ...]) -> str:
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    said = f"; its last line: {last[:_LONGEST_TOLD]}" if last else " without a word"
    what = "it ended by itself" if returncode == 0 else "it crashed"
    return f"{what} ({ending}){said}"


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "exit code unknown"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
