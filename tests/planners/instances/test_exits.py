import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.instances.exits import ExitKind, classify, is_hopeless

COMMON_TAIL = (
    "0.00.400.000 E srv    load_model: failed to load model, 'm.gguf'",
    "0.00.401.000 E srv    llama_server: exiting due to model loading error",
)
LINES = {
    ExitKind.BAD_MODEL: (
        "gguf_init_from_file: failed to open GGUF file 'X' (No such file or directory)",
        "gguf_init_from_reader: invalid magic characters: 'XXXX', expected 'GGUF'",
        "gguf_init_from_reader: failed to read magic",
        "gguf_init_from_reader: failed to read key-value pairs",
        "llama_model_load: error loading model: tensor 'blk.11.ffn_up.weight' data is not within "
        "the file bounds, model is corrupted or incomplete",
        "llama_model_load: error loading model: unknown model architecture: 'zlama'",
        "this GGUF file is version 99 but this software only supports up to version 3",
    ),
    ExitKind.BAD_FLAG: (
        "error: invalid argument: --nope",
        'error while handling argument "-c": stoi',
        'error while handling argument "--device": invalid device: CUDA7',
        'while handling argument "--slot-save-path": not a directory: nodir',
    ),
    ExitKind.CANNOT_BIND: (
        "srv start: couldn't bind HTTP server socket, hostname: /run/x.sock, port: 8080",
    ),
    ExitKind.HOST_OOM: (
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 8791.88 MB)",
        "alloc_tensor_range: failed to allocate CPU buffer of size 9218949120",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    ExitKind.DEVICE_OOM: (
        "ggml_vulkan: Device memory allocation of size 4294967296 failed.",
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 4294967296",
        "alloc_tensor_range: failed to allocate RPC0[127.0.0.1:50052] buffer of size 4294967296",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: "
        "cudaMalloc failed: out of memory",
    ),
    ExitKind.DEVICE_LOST: (
        "ggml-rpc.cpp:519: Remote RPC server crashed or returned malformed response",
        "ggml_vulkan: vk::Queue::submit: ErrorDeviceLost",
    ),
    ExitKind.MISSING_LIBRARY: (
        "llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared "
        "object file: No such file or directory",
    ),
}


@pytest.mark.parametrize(
    ("kind", "line"), [(kind, line) for kind, lines in LINES.items() for line in lines]
)
def test_the_telling_line_names_the_cause(kind: ExitKind, line: str) -> None:
    tail = ("0.00.000.100 I build 1", f"0.00.123.456 E {line}", *COMMON_TAIL)

    cause = classify(1, tail, wanted=False)

    assert cause.kind is kind
    assert line in cause.summary
    assert "exit code 1" in cause.summary
    assert cause.log_tail == tail


def test_running_out_of_memory_is_told_before_the_model_that_failed_for_it() -> None:
    tail = (
        LINES[ExitKind.DEVICE_OOM][1],
        "llama_model_load: error loading model: unable to allocate Vulkan0 buffer",
        *COMMON_TAIL,
    )

    assert classify(1, tail, wanted=False).kind is ExitKind.DEVICE_OOM


@pytest.mark.parametrize(
    ("returncode", "kind", "told"),
    [
        pytest.param(-4, ExitKind.ILLEGAL_INSTRUCTION, "SIGILL", id="SIGILL"),
        pytest.param(-9, ExitKind.KILLED, "SIGKILL", id="SIGKILL"),
        pytest.param(-11, ExitKind.CRASH, "SIGSEGV", id="SIGSEGV"),
        pytest.param(-6, ExitKind.CRASH, "SIGABRT", id="SIGABRT"),
        pytest.param(-7, ExitKind.CRASH, "SIGBUS", id="SIGBUS"),
        pytest.param(-63, ExitKind.CRASH, "signal 63", id="a signal without a name"),
        pytest.param(0, ExitKind.CRASH, "ended by itself", id="a clean exit nobody wanted"),
        pytest.param(1, ExitKind.CRASH, "exit code 1", id="no telling line"),
        pytest.param(None, ExitKind.CRASH, "unknown", id="reaped by another"),
    ],
)
def test_without_a_telling_line_the_code_decides(
    returncode: int | None, kind: ExitKind, told: str
) -> None:
    cause = classify(returncode, ("I all is well",), wanted=False)

    assert cause.kind is kind
    assert told in cause.summary


def test_an_exit_that_was_asked_for_is_no_failure() -> None:
    cause = classify(-15, (LINES[ExitKind.DEVICE_OOM][0],), wanted=True)

    assert cause.kind is ExitKind.WANTED


@pytest.mark.parametrize("kind", ExitKind)
def test_what_had_answered_is_hopeless_by_a_bug_of_ours_alone(kind: ExitKind) -> None:
    assert is_hopeless(kind, had_answered=True) is (kind is ExitKind.BUG)


def test_a_child_of_another_cpu_is_hopeless_where_it_never_answered() -> None:
    assert is_hopeless(ExitKind.ILLEGAL_INSTRUCTION, had_answered=False)
    assert not is_hopeless(ExitKind.CRASH, had_answered=False)


def test_a_child_that_said_nothing_is_told_so() -> None:
    assert "without a word" in classify(-11, (), wanted=False).summary


def test_a_flood_is_classified_within_a_tenth_of_a_second() -> None:
    flood = ["x " * 50_000] * 200
    start_s = time.process_time()

    classify(1, flood, wanted=False)

    assert time.process_time() - start_s < 0.1


@given(st.lists(st.text(max_size=200), max_size=20), st.none() | st.integers(-70, 255))
def test_any_tail_has_a_cause_of_one_line(lines: list[str], returncode: int | None) -> None:
    cause = classify(returncode, lines, wanted=False)

    assert cause.summary
    assert len(cause.summary) < 500


def test_a_kill_while_the_kernel_killed_nobody_for_memory_is_not_taken_for_that() -> None:
    others = classify(-9, (), wanted=False, kernel_kills=0)
    kernel = classify(-9, (), wanted=False, kernel_kills=1)

    assert others.kind is ExitKind.KILLED_BY_PROCESS
    assert "another process killed it" in others.summary
    assert kernel.kind is ExitKind.KILLED
