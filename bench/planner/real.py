"""Files with the published shapes of models that people run, without their weights: holes.

Small enough that every launch of one is over in seconds, its weights sent to remote devices too.
"""

from pathlib import Path

from bench.planner.drafts import Draft, write_draft
from planners.ggml.types import TENSOR_TYPES
from tests.fakes.recipes import tensors
from tests.fakes.tiny_models import Number, TinyModel

_Q4_0 = next(number for number, kind in TENSOR_TYPES.items() if kind.name == "q4_0")
_RMS = {"attention.layer_norm_rms_epsilon": 1e-5}


def _heads(n_head: int, n_kv: Number, width: int) -> dict[str, Number]:
    widths = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    return {**_RMS, "attention.head_count": n_head, "attention.head_count_kv": n_kv,
            **dict.fromkeys(widths, width)}  # fmt: skip


REAL = (
    TinyModel("llama-3.2-1b", "llama", 2048, 16,
              _heads(32, 8, 64) | {"feed_forward_length": 8192}, n_vocab=128256),
    TinyModel("qwen2.5-1.5b", "qwen2", 1536, 28,
              _RMS | {"attention.head_count": 12, "attention.head_count_kv": 2,
                      "feed_forward_length": 8960}, n_vocab=151936),
    TinyModel("gemma-3-4b", "gemma3", 2560, 34,
              _heads(8, 4, 256) | {"feed_forward_length": 10240,
                                   "attention.sliding_window": 1024}, n_vocab=262144),
    TinyModel("granite-4-h-1b", "granitehybrid", 1536, 40,
              _heads(12, [4 if i in (5, 15, 25, 35) else 0 for i in range(40)], 128)
              | {"feed_forward_length": 4096, "ssm.conv_kernel": 4, "ssm.inner_size": 3072,
                 "ssm.state_size": 128, "ssm.time_step_rank": 48, "ssm.group_count": 1},
              n_vocab=100352),
)  # fmt: skip


def write_real(model: TinyModel, folder: Path) -> Path:
    """The model as a sparse file in `folder`, quantised to q4_0."""
    start = f"{model.architecture}."
    numbers = {
        k.removeprefix(start): v for k, v in model.facts.pairs.items() if k.startswith(start)
    }
    shapes = dict(tensors(model.facts, is_tied=model.is_tied))
    draft = Draft(model.name, model.architecture, numbers, model.n_vocab, shapes, _Q4_0)
    return write_draft(draft, folder)
