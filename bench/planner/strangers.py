"""`python -m bench.planner.strangers`: launches of architectures that no drawing is made for.

The plan knows them by their tensors' likeness to others, or by sums, so what counts is whether
its upper bounds hold. Each model is learned from the engine's complaints, as nothing here knows
which tensors its loader wants.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.planner.campaign import told
from bench.planner.drafts import Draft, described, write_draft
from bench.planner.engine import launch, live_engine
from bench.planner.learned import NotLearned, is_told, learned
from bench.planner.measure import random_launch
from planners.backends import Engine
from planners.ggml.layers import ENCODERS
from planners.ggml.types import TENSOR_TYPES
from tests.fakes.gguf_writer import Value
from tests.fakes.tiny_models import TinyModel

Numbers = dict[str, Value]
_OFFERS = 3
OFFERED = ("--device", "none", "-c", "256", "-np", "1", "--no-repack")


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions that a random model is drawn with."""

    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_kv: int
    head: int
    n_ff_expert: int
    window: int


def _experts(size: Size) -> Numbers:
    return {"expert_count": 8, "expert_used_count": 2,
            "expert_feed_forward_length": size.n_ff_expert}  # fmt: skip


def _heads(size: Size) -> Numbers:
    widths = ("attention.key_length", "attention.value_length", "rope.dimension_count",
              "attention.key_length_swa", "attention.value_length_swa")  # fmt: skip
    return dict.fromkeys(widths, size.head)


def _latent(size: Size) -> Numbers:
    return _latent_wide(size) | {"attention.key_length_mla": 96, "attention.value_length_mla": 64,
                                 "attention.head_count_kv": 1}  # fmt: skip


def _latent_wide(size: Size) -> Numbers:
    return {"attention.kv_lora_rank": 64, "attention.q_lora_rank": 96,
            "attention.key_length": 96, "attention.value_length": 64,
            "rope.dimension_count": 32, "attention.head_count_kv": size.n_head}  # fmt: skip


def _states(size: Size) -> Numbers:
    return {"ssm.conv_kernel": 4, "ssm.inner_size": 2 * size.n_embd, "ssm.state_size": 128,
            "ssm.time_step_rank": size.n_embd // 32, "ssm.group_count": 1}  # fmt: skip


def _as_many_kv(size: Size) -> Numbers:
    return {"attention.head_count_kv": size.n_head}


def _encoder(size: Size) -> Numbers:
    return _as_many_kv(size) | {"attention.causal": False, "pooling_type": 1}


def _window(size: Size) -> Numbers:
    return {"attention.sliding_window": size.window}


def _rwkv(size: Size) -> Numbers:
    return {"attention.head_count": 0, "attention.head_count_kv": 0, "wkv.head_size": 64,
            "attention.gate_lora_rank": 64}  # fmt: skip


def _shifted_once(size: Size) -> Numbers:
    return _rwkv(size) | {"token_shift_count": 1, "attention.head_count_kv": size.n_kv}


def _every_layer(size: Size) -> Numbers:
    counts = {"attention.head_count": size.n_head, "attention.head_count_kv": size.n_kv,
              "feed_forward_length": size.n_ff}  # fmt: skip
    return {key: [count] * size.n_layer for key, count in counts.items()}


def _some_attend(size: Size, *, n_kv: int, period: int) -> Numbers:
    counts = [n_kv if (i + 1) % period == 0 else 0 for i in range(size.n_layer)]
    return {"attention.head_count_kv": counts}


def _plamo2(size: Size) -> Numbers:
    return _states(size) | _some_attend(size, n_kv=size.n_kv, period=2) | {"ssm.group_count": 0}


def _kimi(size: Size) -> Numbers:
    linear = {"ssm.conv_kernel": 4, "kda.head_dim": 64}
    return (
        _experts(size)
        | _latent(size)
        | _some_attend(size, n_kv=1, period=min(4, size.n_layer))
        | linear
    )


def _with(*parts: Callable[[Size], Numbers], **numbers: Value) -> Callable[[Size], Numbers]:
    """All of them; `numbers` have their dots as two underscores."""
    told = {key.replace("__", "."): value for key, value in numbers.items()}

    def joined(size: Size) -> Numbers:
        return {key: value for part in parts for key, value in part(size).items()} | told

    return joined


def _one_kv(size: Size) -> Numbers:
    return {"attention.head_count_kv": 1}


def _indexed(size: Size) -> Numbers:
    return _experts(size) | {"attention.indexer.head_count": size.n_kv}


STRANGERS: Mapping[str, Callable[[Size], Numbers]] = {
    **dict.fromkeys(
        ("deci", "plamo", "codeshell", "orion", "muse-glimmer", "chatglm", "bitnet", "olmo",
         "nemotron", "dream", "llada", "apertus", "pangu-embedded", "paddleocr", "llama-embed",
         "maincoder", "talkie", "nanbeige", "chameleon"), _with()),
    **dict.fromkeys(
        ("gpt2", "gptneox", "mpt", "baichuan", "bloom", "qwen", "phi2", "xverse", "jais", "jais2",
         "cogvlm"), _as_many_kv),
    **dict.fromkeys(("falcon", "starcoder", "refact"), _one_kv),
    **dict.fromkeys(
        ("grok", "phimoe", "dbrx", "arctic", "bailingmoe", "bailingmoe2", "hy_v3", "grovemoe",
         "rnd1", "mellum"), _experts),
    **dict.fromkeys(("deepseek2-ocr", "llada-moe"), _with(_experts, _as_many_kv)),
    **dict.fromkeys(("exaone-moe", "afmoe", "mimo2", "step35"), _with(_experts, _window)),
    "cohere2moe": _with(_experts, _window, attention__layer_norm_epsilon=1e-5),
    "smallthinker": _with(_experts, _window, expert_gating_func=2),
    **dict.fromkeys(("mistral4", "deepseek32"), _with(_experts, _latent)),
    "minicpm3": _latent_wide,
    "minimax-m3": _indexed,
    "plamo3": _window,
    **dict.fromkeys(("gemma3n", "gemma4"), _with(_window, _heads)),
    **dict.fromkeys(("rwkv6", "rwkv7"), _rwkv),
    **dict.fromkeys(("rwkv6qwen2", "arwkv7"), _shifted_once),
    "falcon-h1": _states,
    "plamo2": _plamo2,
    "kimi-linear": _kimi,
    "openelm": _every_layer,
    "hunyuan_vl": _with(rope__dimension_sections=[8, 8, 0, 0]),
    **dict.fromkeys(("neo-bert", "jina-bert-v2", "jina-bert-v3"), _encoder),
    "eurobert": _encoder,
    "modern-bert": _with(_encoder, _window),
    "nomic-bert-moe": _with(_encoder, _experts, moe_every_n_layers=2),
}  # fmt: skip
"""Architectures that no drawing is made for, and the keys that make a loadable file of each."""

_MIXTURE = tuple(
    f"blk.*.ffn_{part}.weight" for part in ("gate_inp", "gate_exps", "up_exps", "down_exps")
)
_OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "codeshell": ("token_embd.weight",),
    **dict.fromkeys(("hy_v3", "mimo2", "step35", "smallthinker"), _MIXTURE),
    "rwkv6": ("blk.*.time_mix_lerp_fused.weight",),
    "mistral4": ("blk.*.attn_k_b.weight", "blk.*.attn_v_b.weight"),
    "deepseek32": ("blk.*.attn_k_b.weight", "blk.*.attn_v_b.weight"),
    "falcon-h1": ("blk.*.ssm_norm.weight", "blk.*.ssm_conv1d.bias"),
    "jina-bert-v2": ("blk.*.ffn_gate.weight",),
}
"""Tensors that a loader does without and the graph does not."""

DEFAULTS: Mapping[str, Value] = {
    "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
    "attention.group_norm_epsilon": 1e-5, "attention.group_norm_groups": 4,
    "attention.sliding_window": 128, "attention.sliding_window_pattern": [True, False],
    "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 8.0, "attention.scale": 1.0,
    "attention.output_scale": 1.0, "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 64, "attention.indexer.top_k": 64,
    "attention.indexer.block_size": 16, "attention.indexer.local_blocks": 1,
    "attention.decay_lora_rank": 32, "attention.iclr_lora_rank": 32,
    "attention.value_residual_mix_lora_rank": 32, "attention.shared_kv_layers": 0,
    "attention.key_length_swa": 64, "attention.value_length_swa": 64,
    "attention.temperature_scale": 0.1, "attention.temperature_length": 8192,
    "expert_count": 8, "expert_used_count": 2, "expert_shared_count": 1, "expert_group_count": 1,
    "expert_group_used_count": 1, "expert_gating_func": 2, "expert_weights_scale": 1.0,
    "expert_weights_norm": True, "expert_feed_forward_length": 128, "expert_group_scale": 0.05,
    "expert_shared_feed_forward_length": 128, "expert_chunk_feed_forward_length": 64,
    "experts_per_group": 2, "leading_dense_block_count": 1, "moe_every_n_layers": 2,
    "interleave_moe_layer_step": 1, "nextn_predict_layers": 0,
    "rope.dimension_count": 64, "rope.dimension_count_swa": 64, "rope.freq_base": 10000.0,
    "rope.freq_base_swa": 10000.0, "rope.scaling.original_context_length": 4096,
    "logit_scale": 1.0, "embedding_scale": 1.0, "residual_scale": 1.0,
    "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0,
    "router_logit_softcapping": 30.0, "embedding_length_per_layer_input": 64,
    "time_mix_extra_dim": 32, "time_decay_extra_dim": 64, "rescale_every_n_layers": 6,
    "token_shift_count": 2, "use_parallel_residual": True, "swin_norm": False,
    "ssm.conv_kernel": 4, "kda.head_dim": 64, "num_loops": 2, "n_deepstack_layers": 0,
    "tokenizer.ggml.token_type_count": 2, "swiglu_clamp_exp": [0.0], "swiglu_clamp_shexp": [0.0],
    "xielu.alpha_n": [0.5], "xielu.alpha_p": [0.5], "xielu.beta": [0.5], "xielu.eps": [1e-6],
}  # fmt: skip
"""What a key is given that an engine asks for."""


def main() -> None:
    """Parse, measure, judge, print."""
    parser = argparse.ArgumentParser(prog="bench.planner.strangers", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all choices (1)")
    parser.add_argument("--launches", type=int, default=4, help="of each model (4)")
    parser.add_argument("--only", nargs="*", default=tuple(STRANGERS), help="architectures")
    parser.add_argument("--out", type=Path, help="a table for the rows, to be judged again")
    asked = parser.parse_args()
    engine = live_engine()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        for architecture in asked.only:
            rng = Random(f"{asked.seed} {architecture}")
            try:
                draft = stranger(architecture, rng, engine=engine, folder=Path(folder))
            except NotLearned as exc:
                print(f"{architecture} was not learned: {exc}")
                continue
            rows += measured(draft, rng, engine=engine, n=asked.launches, folder=Path(folder))
            if asked.out is not None:
                asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"seed {asked.seed}: {told(rows)}")


def stranger(architecture: str, rng: Random, *, engine: Engine, folder: Path) -> Draft:
    """A random model of that architecture. Raises NotLearned."""
    draft = sketched(architecture, rng)

    def offer(offered: Draft) -> Sequence[str]:
        path = write_draft(offered, folder)
        heard: list[str] = []
        for _ in range(_OFFERS):  # an engine that ends at once may not have printed its last word
            heard = launch(path, OFFERED, engine)
            if is_told(heard):
                break
        return heard

    return learned(draft, offer, defaults=DEFAULTS)


def sketched(architecture: str, rng: Random) -> Draft:
    """Its keys, and the few tensors that no loader asks for."""
    size = _size(rng)
    numbers: dict[str, Value] = {
        "context_length": 4096, "embedding_length": size.n_embd, "block_count": size.n_layer,
        "feed_forward_length": size.n_ff, "attention.head_count": size.n_head,
        "attention.head_count_kv": size.n_kv, **STRANGERS[architecture](size),
    }  # fmt: skip
    names = [name.replace("*", str(i)) for name in _OPTIONAL.get(architecture, ())
             for i in range(size.n_layer)]  # fmt: skip
    types = {kind.name: number for number, kind in TENSOR_TYPES.items()}
    return Draft(
        name=architecture, architecture=architecture, numbers=numbers,
        n_vocab=rng.choice((1000, 4099, 16000, 32003) if architecture != "chameleon" else (9000,)),
        shapes=dict.fromkeys(names, (1,)),
        type_number=types[rng.choice(("f16", "q8_0", "q4_0"))],
    )  # fmt: skip


def _size(rng: Random) -> Size:
    n_embd, head = 64 * rng.choice((2, 3, 4, 6, 8)), rng.choice((32, 64, 64))
    n_head = n_embd // head
    return Size(
        n_embd=n_embd, n_layer=rng.choice((2, 3, 4, 5, 7)), head=head, n_head=n_head,
        n_ff=n_embd * rng.choice((1, 2, 3, 4)),
        n_kv=rng.choice([n for n in (1, 2, 3, 4, 6, 8) if n_head % n == 0]),
        n_ff_expert=32 * rng.choice((1, 2, 4, 8)), window=rng.choice((64, 128, 512, 1024)),
    )  # fmt: skip


def measured(
    draft: Draft, rng: Random, *, engine: Engine, n: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Rows of `n` random launches of the model; the first of them describes it."""
    path = write_draft(draft, folder)
    kind = "bert" if draft.architecture in ENCODERS else draft.architecture
    numbers = {key: value for key, value in draft.numbers.items() if isinstance(value, int | float)}
    spoken_of = TinyModel(draft.name, kind, 0, draft.n_layer, numbers)
    for i in range(n):
        about = {"id": f"{draft.name}-{i}", "model": draft.name, "arch": draft.architecture}
        row = about | random_launch(spoken_of, path, rng, engine)
        yield row | ({"gguf": described(draft)} if i == 0 else {})
    path.unlink()


if __name__ == "__main__":
    main()
