"""Predictions against what llama-server logged; fixtures/launches.json says how it was measured."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from planners.compute import device_compute_bytes, host_compute_bytes
from planners.ggml.header import GgufArray, GgufHeader, Scalar, Tensor
from planners.gguf import model_info
from planners.hardware import HOST, DeviceId
from planners.kv_cache import LaunchShape
from planners.memory import host_overhead_bytes, output_buffer_bytes, predict
from planners.model import ModelInfo
from planners.plan import DeviceBytes
from tests.fakes.machines import LLAMA_8B

LAUNCHES = Path(__file__).parents[1] / "fixtures" / "launches.json"
ROUNDING_BYTES = 11_000  # a logged size is within 0.01 MiB, padding within 25 kB a device
PADDING_BYTES = 25_000
NAME = attrgetter("name")
HAS_QK_NORM = ("qwen3", "qwen3moe", "gemma3", "lfm2", "qwen3next", "qwen35")
HAS_NO_GATE = ("bert", "nemotron_h", "mamba2")


@dataclass(frozen=True, slots=True)
class Launch:
    name: str
    info: ModelInfo
    shape: LaunchShape
    buffers: dict[str, dict[str, int]]
    predicted: dict[DeviceId, DeviceBytes]

    @property
    def is_full(self) -> bool:
        shape = self.shape
        is_whole = shape.n_gpu_layers == self.info.n_layer + 1 and not shape.n_cpu_moe
        return is_whole and len(shape.split) == 1

    def devices(self) -> Iterator[tuple[dict[str, int], DeviceBytes]]:
        for name, buffers in self.buffers.items():
            if name.startswith(("Vulkan0", "RPC")):
                yield buffers, self.predicted[DeviceId(name)]

    def logged_on_host(self, *kinds: str) -> int:
        on_host = (self.buffers.get(name, {}) for name in ("CPU", "Vulkan_Host"))
        return sum(buffers.get(kind, 0) for buffers in on_host for kind in kinds)


def _info(told: dict[str, Any]) -> ModelInfo:
    """The model as its header would say, one tensor per layer for its bytes."""
    pairs: dict[str, Scalar | GgufArray] = {}
    for key, value in told["metadata"].items():
        if key == "n_vocab":
            pairs["tokenizer.ggml.tokens"] = GgufArray(value, None)
        else:
            pairs[key] = GgufArray(len(value), tuple(value)) if isinstance(value, list) else value
    arch = str(pairs["general.architecture"])
    tensors = [Tensor(name, (), 0, n_bytes) for name, n_bytes in told["outside_bytes"].items()]
    layers = zip(_unrolled(told["layer_bytes"]), _unrolled(told["expert_bytes"]), strict=True)
    for i, (n_bytes, expert_bytes) in enumerate(layers):
        tensors.append(Tensor(f"blk.{i}.attn_q.weight", (), 0, n_bytes - expert_bytes))
        if expert_bytes:
            tensors.append(Tensor(f"blk.{i}.ffn_up_exps.weight", (), 0, expert_bytes))
        if arch not in HAS_NO_GATE:
            tensors.append(Tensor(f"blk.{i}.ffn_gate.weight", (), 0, 0))
        if arch in HAS_QK_NORM:
            tensors.append(Tensor(f"blk.{i}.attn_q_norm.weight", (), 0, 0))
    info = model_info([GgufHeader(3, pairs, tuple(tensors), "", told["file_bytes"], ())])
    largest = min(told["largest_tensor_bytes"], info.largest_tensor_bytes)
    return replace(info, largest_tensor_bytes=largest)


def _unrolled(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [value for count, value in runs for _ in range(count)]


def _launches() -> Iterator[Launch]:
    told = json.loads(LAUNCHES.read_text())
    infos = {name: _info(model) for name, model in told["models"].items()}
    for row in told["launches"]:
        info = infos[row["model"]]
        split = tuple((DeviceId(name), n) for name, n in row["shape"].pop("split", ()))
        shape = LaunchShape(**row["shape"], split=split)
        parts = {p.device_id: p for p in predict(info, shape, overhead_bytes={})}
        yield Launch(f"{row['model']} {row['flags']}", info, shape, row["buffers"], parts)


ALL = tuple(_launches())
FULL = [launch for launch in ALL if launch.is_full]
ON_HOST = [launch for launch in ALL if not launch.shape.split]


@pytest.mark.parametrize("launch", ALL, ids=NAME)
def test_weights_are_exact(launch: Launch) -> None:
    for logged, predicted in launch.devices():
        assert abs(predicted.weights_bytes - logged["model"]) < PADDING_BYTES


@pytest.mark.parametrize("launch", ALL, ids=NAME)
def test_kv_cache_and_state_are_exact(launch: Launch) -> None:
    host = launch.predicted[HOST]
    assert abs(host.kv_bytes - launch.logged_on_host("KV", "RS")) < ROUNDING_BYTES
    for logged, predicted in launch.devices():
        kept = logged.get("KV", 0) + logged.get("RS", 0)
        assert abs(predicted.kv_bytes - kept) < ROUNDING_BYTES


@pytest.mark.parametrize("launch", ALL, ids=NAME)
def test_the_output_buffer_is_exact(launch: Launch) -> None:
    predicted = output_buffer_bytes(launch.info, launch.shape)

    assert abs(predicted - launch.logged_on_host("output")) < ROUNDING_BYTES


@pytest.mark.parametrize("launch", FULL, ids=NAME)
def test_a_device_that_holds_all_layers_is_predicted_within_six_percent(launch: Launch) -> None:
    for logged, predicted in launch.devices():
        assert predicted.total_bytes == pytest.approx(sum(logged.values()), rel=0.06)


@pytest.mark.parametrize("launch", ALL, ids=NAME)
def test_the_upper_bound_holds_within_two_percent(launch: Launch) -> None:
    for logged, predicted in launch.devices():
        assert predicted.upper_bytes > 0.98 * sum(logged.values())


def test_the_median_error_on_a_full_device_is_below_half_a_percent() -> None:
    errors = sorted(
        abs(predicted.total_bytes / sum(logged.values()) - 1)
        for launch in FULL
        for logged, predicted in launch.devices()
    )

    assert errors[len(errors) // 2] < 0.005


@pytest.mark.parametrize("launch", ON_HOST, ids=NAME)
def test_a_host_that_computes_alone_is_predicted_within_a_quarter(launch: Launch) -> None:
    predicted = host_compute_bytes(launch.info, launch.shape)

    assert predicted == pytest.approx(launch.logged_on_host("compute"), rel=0.25)


CPU_SHAPE = LaunchShape(n_ctx=4096, n_parallel=1, n_batch=512, n_ubatch=512)
GPU = DeviceId("gpu")


def test_tied_embeddings_are_held_once_on_the_host_and_again_on_a_device() -> None:
    tied = replace(LLAMA_8B, tied_bytes=100)

    (host,) = predict(tied, CPU_SHAPE, overhead_bytes={})
    _, gpu = predict(tied, replace(CPU_SHAPE, split=((GPU, 33),)), overhead_bytes={})

    layers = sum(layer.weight_bytes for layer in tied.layers)
    assert host.weights_bytes == tied.input_bytes + layers + tied.output_bytes - 100
    assert gpu.weights_bytes == layers + tied.output_bytes


def test_no_byte_of_the_weights_is_lost_between_devices() -> None:
    shape = replace(CPU_SHAPE, split=((GPU, 10), (DeviceId("other"), 12)))

    parts = predict(LLAMA_8B, shape, overhead_bytes={})

    layers = sum(layer.weight_bytes for layer in LLAMA_8B.layers)
    total = LLAMA_8B.input_bytes + layers + LLAMA_8B.output_bytes
    assert sum(part.weights_bytes for part in parts) == total


def test_experts_of_the_first_layers_move_to_the_host() -> None:
    sparse = replace(LLAMA_8B, layers=tuple(replace(x, expert_bytes=1000) for x in LLAMA_8B.layers))
    shape = replace(CPU_SHAPE, split=((GPU, 33),))

    host, gpu = predict(sparse, shape, overhead_bytes={})
    host_moved, gpu_moved = predict(sparse, replace(shape, n_cpu_moe=5), overhead_bytes={})

    assert host_moved.weights_bytes - host.weights_bytes == 5000
    assert gpu.weights_bytes - gpu_moved.weights_bytes == 5000


def test_an_embedding_server_may_grow_its_output_buffer() -> None:
    shape = replace(CPU_SHAPE, embedding=True)

    (host,) = predict(LLAMA_8B, shape, overhead_bytes={})

    assert host.margin_bytes > 500 * LLAMA_8B.n_vocab * 4


def test_halving_the_ubatch_halves_the_compute_buffer() -> None:
    shape = replace(CPU_SHAPE, split=((GPU, 33),))

    halved = device_compute_bytes(LLAMA_8B, replace(shape, n_ubatch=256))

    assert halved == device_compute_bytes(LLAMA_8B, shape) // 2


def test_a_process_takes_host_memory_of_its_own() -> None:
    assert host_overhead_bytes(LLAMA_8B) > 100 << 20
