"""Which of a model's files is the one for a machine: quantisations ranked by their plans. Pure.

whole, with the context ─ the best quality first, the faster of two alike
any other that fits ─ after those; the context first, then the predicted speed
what does not fit ─ last
"""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from planners.model import LayerInfo, ModelInfo, WeightInfo
from planners.plan import LaunchPlan, Shortfall
from planners.quantisation import quality
from planners.speed import format_rate

USUAL_CONTEXT = 8192  # tokens, where none is asked for: a long question and its answer
_TYPE = re.compile(r"q\d_k|i?q\d_[a-z0-9]+|tq\d_\d|bf16|f16|f32|mxfp4")


class Fit(Enum):
    """Where a plan has the model's layers."""

    DEVICES = "all on devices"
    PART = "part on devices"
    HOST = "on the processor"
    NONE = "does not fit"


class Candidate(Struct, frozen=True):
    """One file of a repository, planned."""

    tag: str
    """What it is pulled by."""
    label: str
    """Its quantisation, "" where its name tells none."""
    size_bytes: int
    info: ModelInfo
    answer: LaunchPlan | Shortfall
    is_estimate: bool
    """By its size and another file's header, not by its own."""

    @property
    def fit(self) -> Fit:
        """Where its layers would be."""
        if isinstance(self.answer, Shortfall):
            return Fit.NONE
        if not self.answer.devices:
            return Fit.HOST
        is_whole = self.answer.n_gpu_layers > self.info.n_layer and not self.answer.n_cpu_moe
        return Fit.DEVICES if is_whole else Fit.PART

    @property
    def context(self) -> int:
        """Tokens one request may use; 0 where it does not fit."""
        return self.answer.context if isinstance(self.answer, LaunchPlan) else 0

    @property
    def tokens_per_s(self) -> float | None:
        """Of decode, predicted."""
        if isinstance(self.answer, Shortfall):
            return None
        return self.answer.predicted_decode_tokens_per_s


def ranked(candidates: Sequence[Candidate], *, context: int | None) -> tuple[Candidate, ...]:
    """Best first. `context`: tokens that a request must be able to use; None is the usual one."""
    fastest = _fastest(candidates)

    def place(one: Candidate) -> tuple[int, float, float, float, int]:
        speed = -(one.tokens_per_s or 0.0)
        if one.fit is Fit.NONE:
            return (3, 0.0, quality(one.label), 0.0, one.size_bytes)
        has_context = one.context >= wanted_context(one, context)
        if one.fit is fastest and has_context:
            return (0, quality(one.label), speed, 0.0, one.size_bytes)
        return (1 if has_context else 2, speed, quality(one.label), 0.0, one.size_bytes)

    return tuple(sorted(candidates, key=place))


def wanted_context(one: Candidate, context: int | None) -> int:
    """Tokens that must fit for it to count as whole; no more than the model was trained for."""
    wanted = USUAL_CONTEXT if context is None else context
    return min(wanted, one.info.n_ctx_train or wanted)


def _fastest(candidates: Iterable[Candidate]) -> Fit:
    """The fastest memory is the devices', where any of these would be put there."""
    uses_devices = any(one.fit in (Fit.DEVICES, Fit.PART) for one in candidates)
    return Fit.DEVICES if uses_devices else Fit.HOST


def why(order: Sequence[Candidate], *, context: int | None) -> str:
    """Why the first one is the pick, a sentence."""
    best = order[0]
    if best.fit is Fit.NONE:
        return f"none fits this machine: {best.answer}"
    wanted = wanted_context(best, context)
    rate = best.tokens_per_s
    speed = "" if rate is None else f", {format_rate(rate)} tokens/s predicted"
    where = f"{best.fit.value} with context {best.context}{speed}"
    if best.fit is _fastest(order) and best.context >= wanted:
        return f"{best.tag} has the best quality of those that fit {where}"
    lack = "" if best.context >= wanted else f", less than the {wanted} that are wanted"
    return f"{best.tag} is the fastest, as none fits whole where memory is fastest: {where}{lack}"


def estimated(info: ModelInfo, *, label: str, size_bytes: int) -> ModelInfo:
    """What a file of another quantisation is, by its size: the same model with other weights."""
    found = _TYPE.match(label.lower().removeprefix("ud-"))
    other = _Requantised(size_bytes / max(1, info.file_bytes), found[0] if found else "")
    kinds = {id(layer): layer for layer in info.layers}  # equal layers mostly are one object
    layers = {key: other.layer(layer) for key, layer in kinds.items()}
    return replace(
        info,
        digest=hashlib.sha256(f"{info.digest} {label} {size_bytes}".encode()).hexdigest(),
        quantization=label or "unknown",
        layers=tuple(layers[id(layer)] for layer in info.layers),
        input_bytes=other.n_bytes(info.input_bytes),
        output_bytes=other.n_bytes(info.output_bytes),
        tied_bytes=other.n_bytes(info.tied_bytes),
        largest_tensor_bytes=other.n_bytes(info.largest_tensor_bytes),
        ends=tuple(map(other.weight, info.ends)),
        file_bytes=size_bytes,
    )


class _Requantised(Struct, frozen=True):
    """Parts of a model in a file of another size."""

    factor: float
    type_name: str
    """Of its matrices; "" where the label tells none."""

    def n_bytes(self, before: int) -> int:
        return math.ceil(before * self.factor)

    def weight(self, one: WeightInfo) -> WeightInfo:
        if one.type_name == "f32" and len(one.shape) < 2:  # norms, which nobody quantises
            return one
        return replace(one, n_bytes=self.n_bytes(one.n_bytes), type_name=self.type_name)

    def layer(self, one: LayerInfo) -> LayerInfo:
        return replace(
            one,
            weight_bytes=self.n_bytes(one.weight_bytes),
            expert_bytes=self.n_bytes(one.expert_bytes),
            weights=tuple(map(self.weight, one.weights)),
        )
