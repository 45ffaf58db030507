"""Random small models of every architecture that is drawn.

Seeded: the same numbers give the same models. Shapes are odd on purpose, but such as the engine's
loaders accept.
"""

from collections.abc import Callable, Sequence
from random import Random

from planners.ggml.types import TENSOR_TYPES
from tests.fakes.recipes import BERTS, DENSE, MIXTURES
from tests.fakes.tiny_models import Number, TinyModel

ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "gemma2", "gemma3", "gpt-oss", "qwen3moe", "mixtral", "deepseek2",
    "mamba", "mamba2", "jamba", "granitehybrid", "nemotron_h", "lfm2", "qwen3next", "qwen35",
    "qwen35moe", "bert", "nomic-bert",
)  # fmt: skip
"""Kinds of model; "mixtral" is llama with experts."""
ENCODERS = (*BERTS, "gemma-embedding")
OTHERS = (*DENSE, *MIXTURES, "lfm2moe", "nemotron_h_moe", "gemma-embedding")
"""Kinds that the measured tables lack."""
_DEEP = 27  # layers of the one deepseek2 that loads without a compressed query
_MANY_LAYERS = (19, 26, 40, 61)  # of so many, some stand for all
_TYPES = {name: number for number, kind in TENSOR_TYPES.items() for name in (kind.name,)}
_TIED = ("command-r", "cohere2", "gemma", "gemma2", "gemma3", "gemma-embedding")
_UNTIED = (
    "internlm2",
    "stablelm",
    "minimax-m2",
    "gpt-oss",
    "olmo2",
    "olmoe",
    "qwen2moe",
    "dots1",
    "deepseek",
    *BERTS,
)
_WEIGHTS = ("q8_0", "q8_0", "q4_0", "q4_0", "f16", "q4_1", "q5_0", "q6_k", "q4_k", "bf16")
_EXPERTS = ("q8_0", "q4_0", "mxfp4", "f16")
_MIXED = (
    "q8_0", "q4_0", "q5_1", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k", "iq4_nl", "iq4_xs", "iq3_s",
    "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_s", "iq1_m", "mxfp4", "bf16", "f16", "f32",
)  # fmt: skip
_PAIRS = {"key": "attention.key_length", "value": "attention.value_length"}

Numbers = dict[str, Number]


def _whole(told: Numbers, key: str) -> int:
    """A number that is known to be one."""
    value = told[key]
    assert isinstance(value, int)
    return value


def random_model(rng: Random, kind: str, *, name: str) -> TinyModel:
    """A model of one kind; its weights are small enough to load in a moment."""
    n_embd = 64 * rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 10, 12))
    n_layer = rng.choice((1, 2, 3, 4, 5, 6, 7, 9, 12, 14, *_MANY_LAYERS))
    n_embd = min(n_embd, 192) if n_layer in _MANY_LAYERS else n_embd
    architecture = "llama" if kind == "mixtral" else kind
    rms: Numbers = {"attention.layer_norm_rms_epsilon": 1e-5}
    numbers = rms | _KINDS[kind](rng, n_embd, n_layer)
    if kind == "deepseek2" and "attention.q_lora_rank" not in numbers:
        n_layer, n_embd = _DEEP, min(n_embd, 256)
    if kind in ("llama", "qwen2", "qwen3", "gemma3") and rng.random() < 0.15:
        numbers |= {"attention.causal": False, "pooling_type": rng.choice((1, 3))}
    is_encoder = architecture in ENCODERS
    return TinyModel(
        name=name,
        architecture=architecture,
        n_embd=n_embd,
        n_layer=n_layer,
        numbers=numbers,
        is_tied=kind in _TIED or (kind not in _UNTIED and rng.random() < 0.5),
        type_number=_TYPES["f16" if is_encoder else rng.choice(_WEIGHTS)],
        n_vocab=rng.choice((512, 1000, 2048, 4099, 16000, 32003, 49152)),
        n_ctx=rng.choice((512, 2048, 8192)) if is_encoder else 1 << 15,
        expert_type_number=_TYPES[rng.choice(_EXPERTS)] if rng.random() < 0.5 else None,
        mixed_types=_mixed_types(rng) if rng.random() < 0.4 and not is_encoder else (),
    )


def _mixed_types(rng: Random) -> tuple[int, ...]:
    return tuple(_TYPES[name] for name in rng.sample(_MIXED, rng.randint(2, 5)))


def _plain_heads(rng: Random, n_embd: int) -> Numbers:
    """Heads that make up the model's width, for loaders that know no other."""
    counts = [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n_embd % (n * 32) == 0]
    n_head = rng.choice(counts)
    n_kv = rng.choice([n for n in counts if n_head % n == 0])
    return {
        "attention.head_count": n_head, "attention.head_count_kv": n_kv,
        "rope.dimension_count": n_embd // n_head,
    }  # fmt: skip


def _heads(rng: Random, n_embd: int, *, widths: Sequence[int] = (32, 64, 80, 96, 128)) -> Numbers:
    """Heads whose width need not divide the model's, in groups."""
    n_kv = rng.choice((1, 1, 2, 2, 3, 4))
    n_head = n_kv * rng.choice((1, 2, 3, 4, 6))
    told: Numbers = {"attention.head_count": n_head, "attention.head_count_kv": n_kv}
    plain = n_embd // n_head
    if n_embd % n_head == 0 and plain % 32 == 0 and rng.random() < 0.5:
        return told | {"rope.dimension_count": plain}
    width = rng.choice(widths)
    return told | dict.fromkeys(_PAIRS.values(), width) | {"rope.dimension_count": width}


def _width(rng: Random, n_embd: int) -> int:
    return max(32, rng.choice((n_embd // 2, n_embd, 2 * n_embd, 3 * n_embd, 8 * n_embd)) // 32 * 32)


def _moe(rng: Random, n_embd: int) -> Numbers:
    used = rng.choice((1, 2, 3, 4, 6, 8))
    count = max(used, rng.choice((4, 6, 8, 16, 24)))
    width = 32 * rng.choice((1, 2, 3, 4, 6, 8))
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": width}


def _dense(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _heads(rng, n_embd) | {"feed_forward_length": _width(rng, n_embd)}


def _plain(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _plain_heads(rng, n_embd) | {"feed_forward_length": _width(rng, n_embd)}


def _windowed(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _dense(rng, n_embd, n_layer) | {
        "attention.sliding_window": rng.choice((64, 128, 500, 512, 1024, 4096))
    }


def _gemma2(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    soft = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return _windowed(rng, n_embd, n_layer) | soft


def _gemma3(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _windowed(rng, n_embd, n_layer)
    if rng.random() < 0.3:
        told["attention.sliding_window_pattern"] = rng.choice((2, 3, 4))
    return told


def _gemma_embedding(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _windowed(rng, n_embd, n_layer) | {
        "attention.causal": False, "pooling_type": rng.choice((1, 1, 2, 3)),
    }  # fmt: skip


def _gpt_oss(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _windowed(rng, n_embd, n_layer) | _moe(rng, n_embd)
    return told | {"feed_forward_length": told["expert_feed_forward_length"]}


def _experts(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _dense(rng, n_embd, n_layer) | _moe(rng, n_embd)


def _mixtral(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _experts(rng, n_embd, n_layer)
    told["feed_forward_length"] = told.pop("expert_feed_forward_length")
    return told


_WINDOWED = ("olmo2", "exaone4", "cohere2")
_NARROW = (
    "exaone", "starcoder2", "stablelm", "command-r", "cohere2", "minicpm", "internlm2", "qwen2vl",
    "phi3", "olmo2", "exaone4", "qwen2moe", "olmoe", "ernie4_5-moe", "granite", "granitemoe",
    "deepseek",
)  # fmt: skip
"""Kinds whose loaders know no heads but those that make up the model's width."""


def _other(kind: str) -> Callable[[Random, int, int], Numbers]:
    """A decoder like llama's, with what is odd in this one."""

    def numbers(rng: Random, n_embd: int, n_layer: int) -> Numbers:
        heads = _plain if kind in _NARROW else _dense
        told = heads(rng, n_embd, n_layer)
        if kind in _WINDOWED and (kind == "cohere2" or rng.random() < 0.5):
            told["attention.sliding_window"] = rng.choice((64, 128, 500, 1024))
        if kind.startswith("granite"):
            told |= {f"{name}_scale": 3.0 for name in ("embedding", "residual", "logit")}
        if kind in ("command-r", "cohere2", "starcoder2", "stablelm"):
            told |= {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.5}
        if kind in ("qwen2vl", "qwen3vl", "qwen3vlmoe"):
            told = _sections(told)
        if kind.startswith("qwen3vl"):
            told["n_deepstack_layers"] = rng.choice((0, 3))
        if kind in ("olmoe", "dots1"):
            told["attention.head_count_kv"] = told["attention.head_count"]
        return told | _mixture(rng, n_embd, kind) if kind in MIXTURES else told

    return numbers


def _mixture(rng: Random, n_embd: int, kind: str) -> Numbers:
    told = _moe(rng, n_embd)
    if kind in ("granitemoe", "olmoe", "hunyuan-moe", "minimax-m2"):
        told["feed_forward_length"] = told["expert_feed_forward_length"]
    if kind in ("dots1", "deepseek", "glm4moe"):
        told |= {"expert_shared_count": rng.choice((1, 2)), "leading_dense_block_count": 1}
        told |= {"expert_weights_scale": 2.5, "expert_weights_norm": rng.random() < 0.5}
    if kind in ("dots1", "glm4moe", "minimax-m2"):
        told["expert_gating_func"] = rng.choice((1, 2))
    if kind in ("qwen2moe", "granitemoe", "hunyuan-moe", "ernie4_5-moe"):
        told["expert_shared_feed_forward_length"] = 32 * rng.randint(1, 6)
    if kind == "llama4":
        told["interleave_moe_layer_step"] = 1
    if kind == "ernie4_5-moe":
        told |= {"leading_dense_block_count": 1, "interleave_moe_layer_step": 1}
    return told


def _lfm2_moe(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _lfm2(rng, n_embd, n_layer) | _moe(rng, n_embd)
    return told | {"leading_dense_block_count": rng.choice((0, 1)), "expert_gating_func": 2}


def _latent(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    rank, rope = rng.choice((64, 128, 256, 512)), rng.choice((32, 64))
    told = _moe(rng, n_embd) | {
        "attention.head_count": rng.choice((1, 2, 4, 8, 16)), "attention.head_count_kv": 1,
        "attention.key_length": rank + rope, "attention.value_length": rank,
        "attention.key_length_mla": rng.choice((32, 64, 128)) + rope,
        "attention.value_length_mla": rng.choice((32, 64, 128)),
        "rope.dimension_count": rope, "attention.kv_lora_rank": rank,
        "feed_forward_length": _width(rng, n_embd), "expert_shared_count": rng.choice((1, 2, 3)),
        "leading_dense_block_count": rng.choice((0, 1, 2)), "expert_weights_scale": 1.0,
    }  # fmt: skip
    if rng.random() < 0.3 and _whole(told, "expert_count") in (8, 16, 24):
        told |= {"expert_group_count": 2, "expert_group_used_count": 1, "expert_gating_func": 2}
    if rng.random() < 0.8:
        told["attention.q_lora_rank"] = rng.choice((32, 96, 256))
    return told


def _ssm_1(rng: Random, n_embd: int) -> Numbers:
    return {
        "ssm.conv_kernel": rng.choice((3, 4, 4)), "ssm.inner_size": 2 * n_embd,
        "ssm.state_size": rng.choice((8, 16, 32)), "ssm.time_step_rank": rng.choice((8, 16, 48)),
    }  # fmt: skip


def _ssm_2(rng: Random, inner: int) -> Numbers:
    head = rng.choice([w for w in (16, 32, 64, 128) if inner % w == 0])
    heads = inner // head
    groups = rng.choice([g for g in (1, 2, 4) if heads % g == 0])
    return {
        "ssm.conv_kernel": rng.choice((3, 4, 4)), "ssm.inner_size": inner,
        "ssm.state_size": rng.choice((64, 128, 128, 256)), "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }  # fmt: skip


def _mamba(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _ssm_1(rng, n_embd) | {"attention.head_count": 0, "feed_forward_length": 0}


def _mamba2(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _ssm_2(rng, 2 * n_embd) | {"attention.head_count": 0, "feed_forward_length": 0}


def _attending(rng: Random, told: Numbers, n_layer: int) -> Numbers:
    """Some layers attend: every third to fifth, from a random one on."""
    period = rng.choice((2, 3, 4, 5))
    at, n_kv = rng.randrange(period), _whole(told, "attention.head_count_kv")
    counts = [n_kv if i % period == at else 0 for i in range(n_layer)]
    return {**told, "attention.head_count_kv": counts}


def _jamba(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _attending(rng, _plain(rng, n_embd, n_layer), n_layer) | _ssm_1(rng, n_embd)


def _granite_hybrid(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _attending(rng, _dense(rng, n_embd, n_layer), n_layer) | _ssm_2(rng, 2 * n_embd)


def _nemotron_h(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _dense(rng, n_embd, n_layer) | _ssm_2(rng, 64 * rng.choice((4, 6, 8, 16)))
    kinds = rng.choices(("mamba", "mlp", "attention"), (3, 2, 1), k=n_layer)
    n_kv = _whole(told, "attention.head_count_kv")
    width = _whole(told, "feed_forward_length")
    return {
        **told,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.head_count_kv": [n_kv if kind == "attention" else 0 for kind in kinds],
        "feed_forward_length": [width if kind == "mlp" else 0 for kind in kinds],
    }


def _nemotron_moe(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _nemotron_h(rng, n_embd, n_layer) | _moe(rng, n_embd)
    return told | {
        "expert_shared_feed_forward_length": 32 * rng.randint(1, 6), "expert_shared_count": 1,
        "expert_weights_norm": rng.random() < 0.5, "expert_weights_scale": 2.5,
    }  # fmt: skip


def _lfm2(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _attending(rng, _plain(rng, n_embd, n_layer), n_layer)
    return told | {"shortconv.l_cache": rng.choice((3, 3, 4))}


def _delta(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    told = _heads(rng, n_embd, widths=(64, 128, 256))
    is_given = "attention.key_length" in told
    width = (
        _whole(told, "attention.key_length")
        if is_given
        else n_embd // _whole(told, "attention.head_count")
    )
    groups, state = rng.choice((1, 2, 4)), rng.choice((32, 64, 128))
    heads = groups * rng.choice((1, 2, 3))
    told |= {
        "rope.dimension_count": width // 4,
        "feed_forward_length": _width(rng, n_embd), "ssm.conv_kernel": 4,
        "ssm.inner_size": state * heads, "ssm.state_size": state,
        "ssm.time_step_rank": heads, "ssm.group_count": groups,
    }  # fmt: skip
    if rng.random() < 0.3:
        told["full_attention_interval"] = rng.choice((2, 3))
    return told


def _sections(told: Numbers) -> Numbers:
    part = _whole(told, "rope.dimension_count") // 4
    return told | {"rope.dimension_sections": [part, part, 0, 0]}


def _shared_experts(rng: Random, n_embd: int) -> Numbers:
    return _moe(rng, n_embd) | {"expert_shared_feed_forward_length": 32 * rng.randint(1, 6)}


def _qwen3next(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _delta(rng, n_embd, n_layer) | _shared_experts(rng, n_embd)


def _qwen35(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _sections(_delta(rng, n_embd, n_layer))


def _qwen35moe(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    return _qwen35(rng, n_embd, n_layer) | _shared_experts(rng, n_embd)


def _encoder(rng: Random, n_embd: int, n_layer: int) -> Numbers:
    n_head = rng.choice([h for h in (1, 2, 3, 4, 6, 8, 12) if n_embd % (h * 16) == 0])
    return {
        "attention.layer_norm_epsilon": 1e-5, "attention.head_count": n_head,
        "feed_forward_length": _width(rng, n_embd), "attention.causal": False,
        "pooling_type": rng.choice((1, 1, 2, 3)),
    }  # fmt: skip


_KINDS: dict[str, Callable[[Random, int, int], Numbers]] = {
    **dict.fromkeys(("llama", "qwen3"), _dense), "qwen2": _plain,
    "gemma2": _gemma2, "gemma3": _gemma3, "gpt-oss": _gpt_oss, "qwen3moe": _experts,
    "mixtral": _mixtral, "deepseek2": _latent, "mamba": _mamba, "mamba2": _mamba2,
    "jamba": _jamba, "granitehybrid": _granite_hybrid, "nemotron_h": _nemotron_h, "lfm2": _lfm2,
    "qwen3next": _qwen3next, "qwen35": _qwen35, "qwen35moe": _qwen35moe,
    **dict.fromkeys(BERTS, _encoder), **{kind: _other(kind) for kind in (*DENSE, *MIXTURES)},
    "gemma-embedding": _gemma_embedding, "lfm2moe": _lfm2_moe, "nemotron_h_moe": _nemotron_moe,
}  # fmt: skip
