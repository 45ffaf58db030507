"""Tensor tables of model files, from their metadata alone: what each architecture's loader wants.

`tests.fakes.tiny_models` writes loadable files of them, `bench.planner` rebuilds the headers of
measured models, whose rows keep metadata and sums. Names and shapes are those that llama.cpp's
loaders create (src/models/*.cpp, load_arch_tensors, b11434).
"""

from collections.abc import Callable, Iterator
from math import prod

from tests.fakes.model_facts import Facts

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Shape]]
BERTS = ("bert", "nomic-bert")
DENSE = ("mistral3", "smollm3", "qwen2vl", "seed_oss", "granite", "ernie4_5", "gemma", "glm4",
         "phi3", "olmo2", "exaone4", "hunyuan-dense", "exaone", "internlm2", "minicpm",
         "arcee", "qwen3vl", "command-r", "starcoder2", "stablelm",
         "cohere2")  # fmt: skip
MIXTURES = ("qwen2moe", "granitemoe", "ernie4_5-moe", "glm4moe", "olmoe", "dots1", "deepseek",
            "hunyuan-moe", "minimax-m2", "qwen3vlmoe", "llama4")  # fmt: skip
_BIASED = ("qwen2", "qwen2vl", "qwen2moe", "seed_oss", "glm4moe")
_FULLY_BIASED = ("starcoder2",)
_LAYER_NORMED = ("starcoder2", "stablelm")
_UNGATED = ("arcee", "starcoder2")
_NORMED = (
    "qwen3vl",
    "qwen3vlmoe",
    "qwen3",
    "qwen3moe",
    "gemma3",
    "exaone4",
    "hunyuan-dense",
    "hunyuan-moe",
    "dots1",
    "gemma-embedding",
)
_WHOLE_NORMS = ("olmo2", "olmoe", "minimax-m2")
_POST_NORMS = ("gemma-embedding", "gemma2", "gemma3", "glm4", "olmo2", "exaone4")
_NO_PRE_NORMS = ("olmo2", "exaone4")
_SCORED = (
    "nemotron_h_moe",
    "minimax-m2",
    "ernie4_5-moe",
    "glm4moe",
    "dots1",
    "lfm2moe",
)  # experts with a bias to their scores
_RANK = 4  # llama.cpp's number of that pooling type


def tensors(facts: Facts, *, is_tied: bool = True) -> list[tuple[str, Shape]]:
    """Every tensor of the file: what lies outside of blocks, then block by block."""
    found = [*_outside(facts, is_tied=is_tied)]
    block = _BLOCKS[facts.architecture]
    if facts.architecture == "t5":
        return [*found, *_t5(facts)]
    for i in range(facts.n_layer):
        found += [(f"blk.{i}.{name}", shape) for name, shape in block(facts, i)]
    return found


def is_f32(name: str, shape: Shape) -> bool:
    """True for the tensors that every converter leaves in f32."""
    small = ("norm", "ffn_gate_inp", ".ssm_a", ".ssm_d", "ssm_conv1d", "shortconv.conv",
             "attn_rel_b", "position_embd", "token_types")  # fmt: skip
    return len(shape) == 1 or name.endswith(".bias") or any(part in name for part in small)


def n_elements(shape: Shape) -> int:
    """The product of a shape."""
    return prod(shape)


def _outside(facts: Facts, *, is_tied: bool) -> Named:
    arch, e = facts.architecture, facts.n_embd
    yield "token_embd.weight", (e, facts.n_vocab)
    if arch in BERTS:
        yield "token_types.weight", (e, 2)
        if arch == "bert":
            yield "position_embd.weight", (e, facts.get("context_length"))
        yield "token_embd_norm.weight", (e,)
        yield "token_embd_norm.bias", (e,)
        if facts.get("pooling_type") == _RANK:
            yield "cls.weight", (e, e)
            yield "cls.bias", (e,)
            yield "cls.output.weight", (e, 1)
            yield "cls.output.bias", (1,)
        return
    if arch == "t5":
        yield "enc.output_norm.weight", (e,)
        yield "dec.output_norm.weight", (e,)
    else:
        is_late = arch in ("lfm2", "lfm2moe")
        yield f"{'token_embd_norm' if is_late else 'output_norm'}.weight", (e,)
    if arch in _LAYER_NORMED:
        yield "output_norm.bias", (e,)
    if not is_tied:
        yield "output.weight", (e, facts.n_vocab)


def _norms(facts: Facts, *names: str) -> Named:
    for name in names:
        yield f"{name}.weight", (facts.n_embd,)


def _attention(
    facts: Facts, i: int, *, q_times: int = 1, qk_norm: bool = False, bias: bool = False
) -> Named:
    k, v = facts.head_widths
    n_head, n_head_kv = facts.get("attention.head_count"), facts.at("attention.head_count_kv", i)
    widths = {"q": n_head * k * q_times, "k": n_head_kv * k, "v": n_head_kv * v}
    for part, width in widths.items():
        yield f"attn_{part}.weight", (facts.n_embd, width)
        if bias:
            yield f"attn_{part}.bias", (width,)
    yield "attn_output.weight", (n_head * v, facts.n_embd)
    if facts.architecture in _WHOLE_NORMS:
        yield "attn_q_norm.weight", (n_head * k,)
        yield "attn_k_norm.weight", (n_head_kv * k,)
    elif qk_norm:
        yield "attn_q_norm.weight", (k,)
        yield "attn_k_norm.weight", (k,)


def _ffn(facts: Facts, width: int, *, gate: bool = True, suffix: str = "") -> Named:
    if gate:
        yield f"ffn_gate{suffix}.weight", (facts.n_embd, width)
    yield f"ffn_up{suffix}.weight", (facts.n_embd, width)
    yield f"ffn_down{suffix}.weight", (width, facts.n_embd)


def _experts(facts: Facts, width: int, *, bias: bool = False) -> Named:
    e, n = facts.n_embd, facts.get("expert_count")
    yield "ffn_gate_inp.weight", (e, n)
    yield "ffn_gate_exps.weight", (e, width, n)
    yield "ffn_up_exps.weight", (e, width, n)
    yield "ffn_down_exps.weight", (width, e, n)
    if bias:
        yield "ffn_gate_inp.bias", (n,)
        yield "ffn_gate_exps.bias", (width, n)
        yield "ffn_up_exps.bias", (width, n)
        yield "ffn_down_exps.bias", (e, n)


def _llama(facts: Facts, i: int) -> Named:
    arch, width = facts.architecture, facts.at("feed_forward_length", i)
    if arch not in _NO_PRE_NORMS:
        yield from _norms(facts, "attn_norm")
        late = arch in ("seed_oss", "glm4moe")
        if arch not in ("command-r", "cohere2"):
            yield from _norms(facts, "post_attention_norm" if late else "ffn_norm")
        if arch in _LAYER_NORMED:
            yield "attn_norm.bias", (facts.n_embd,)
            yield "ffn_norm.bias", (facts.n_embd,)
    if arch in _POST_NORMS:
        yield from _norms(facts, "post_attention_norm", "post_ffw_norm")
    yield from _attention(
        facts, i, qk_norm=arch in _NORMED, bias=arch in (*_BIASED, *_FULLY_BIASED)
    )
    if arch in _FULLY_BIASED:
        yield "attn_output.bias", (facts.n_embd,)
        yield "ffn_up.bias", (width,)
        yield "ffn_down.bias", (facts.n_embd,)
    if facts.get("expert_count") and i >= facts.get("leading_dense_block_count"):
        yield from _mixture(facts, facts.get("expert_feed_forward_length", width))
    elif arch in ("phi3", "glm4"):
        yield "ffn_up.weight", (facts.n_embd, 2 * width)
        yield "ffn_down.weight", (width, facts.n_embd)
    else:
        yield from _ffn(facts, width, gate=arch not in _UNGATED)


def _mixture(facts: Facts, width: int) -> Named:
    """Routed experts, those that all tokens share, and what chooses between them."""
    yield from _experts(facts, width)
    if facts.architecture in _SCORED:
        yield "exp_probs_b.bias", (facts.get("expert_count"),)
    shared = facts.get("expert_shared_feed_forward_length")
    if facts.architecture == "llama4":
        shared = width
    if shared := shared or width * facts.get("expert_shared_count"):
        yield from _ffn(facts, shared, suffix="_shexp")
    if facts.architecture == "qwen2moe":
        yield "ffn_gate_inp_shexp.weight", (facts.n_embd,)


def _gpt_oss(facts: Facts, i: int) -> Named:
    yield from _norms(facts, "attn_norm", "post_attention_norm")
    yield from _attention(facts, i, bias=True)
    yield "attn_output.bias", (facts.n_embd,)
    yield "attn_sinks.weight", (facts.get("attention.head_count"),)
    yield from _experts(facts, facts.get("expert_feed_forward_length"), bias=True)


def _deepseek2(facts: Facts, i: int) -> Named:
    e, n_head, rope = (
        facts.n_embd,
        facts.get("attention.head_count"),
        facts.get("rope.dimension_count"),
    )
    q_rank, kv_rank = facts.get("attention.q_lora_rank"), facts.get("attention.kv_lora_rank")
    key, value = facts.get("attention.key_length_mla"), facts.get("attention.value_length_mla")
    yield from _norms(facts, "attn_norm", "ffn_norm")
    yield "attn_kv_a_norm.weight", (kv_rank,)
    if q_rank:
        yield "attn_q_a_norm.weight", (q_rank,)
        yield "attn_q_a.weight", (e, q_rank)
        yield "attn_q_b.weight", (q_rank, n_head * key)
    else:
        yield "attn_q.weight", (e, n_head * key)
    yield "attn_kv_a_mqa.weight", (e, kv_rank + rope)
    yield "attn_k_b.weight", (key - rope, kv_rank, n_head)
    yield "attn_v_b.weight", (kv_rank, value, n_head)
    yield "attn_output.weight", (n_head * value, e)
    if i < facts.get("leading_dense_block_count"):
        yield from _ffn(facts, facts.get("feed_forward_length"))
    else:
        width = facts.get("expert_feed_forward_length")
        yield from _experts(facts, width)
        yield from _ffn(facts, width * facts.get("expert_shared_count"), suffix="_shexp")


def _mamba(facts: Facts, i: int) -> Named:
    yield from _norms(facts, "attn_norm")
    yield from _ssm_1(facts)


def _ssm_1(facts: Facts) -> Named:
    inner, state, rank = (
        facts.get(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank")
    )
    taps = facts.get("ssm.conv_kernel")
    yield "ssm_in.weight", (facts.n_embd, 2 * inner)
    yield "ssm_conv1d.weight", (taps, inner)
    yield "ssm_conv1d.bias", (inner,)
    yield "ssm_x.weight", (inner, rank + 2 * state)
    if facts.architecture == "jamba":
        yield "ssm_dt_norm.weight", (rank,)
        yield "ssm_b_norm.weight", (state,)
        yield "ssm_c_norm.weight", (state,)
    yield "ssm_dt.weight", (rank, inner)
    yield "ssm_dt.bias", (inner,)
    yield "ssm_a", (state, inner)
    yield "ssm_d", (inner,)
    yield "ssm_out.weight", (inner, facts.n_embd)


def _mamba2(facts: Facts, i: int) -> Named:
    yield from _norms(facts, "attn_norm")
    yield from _ssm_2(facts)


def _ssm_2(facts: Facts) -> Named:
    inner, state, heads, groups = (
        facts.get(f"ssm.{key}")
        for key in ("inner_size", "state_size", "time_step_rank", "group_count")
    )
    convolved = inner + 2 * groups * state
    yield "ssm_in.weight", (facts.n_embd, inner + convolved + heads)
    yield "ssm_conv1d.weight", (facts.get("ssm.conv_kernel"), convolved)
    yield "ssm_conv1d.bias", (convolved,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (1, heads)
    yield "ssm_d", (1, heads)
    yield "ssm_norm.weight", (inner // groups, groups)
    yield "ssm_out.weight", (inner, facts.n_embd)


def _jamba(facts: Facts, i: int) -> Named:
    yield from _norms(facts, "attn_norm", "ffn_norm")
    has_heads = facts.at("attention.head_count_kv", i) > 0
    yield from _attention(facts, i) if has_heads else _ssm_1(facts)
    yield from _ffn(facts, facts.at("feed_forward_length", i))


def _granite_hybrid(facts: Facts, i: int) -> Named:
    yield from _norms(facts, "attn_norm", "ffn_norm")
    has_heads = facts.at("attention.head_count_kv", i) > 0
    yield from _attention(facts, i) if has_heads else _ssm_2(facts)
    yield from _ffn(facts, facts.at("feed_forward_length", i))


def _nemotron_h(facts: Facts, i: int) -> Named:
    yield from _norms(facts, "attn_norm")
    width = facts.at("feed_forward_length", i)
    if width and facts.architecture == "nemotron_h_moe":
        for name, shape in _mixture(facts, facts.get("expert_feed_forward_length")):
            if "gate_exps" not in name and "gate_shexp" not in name:
                yield name, shape
    elif width:
        yield from _ffn(facts, width, gate=False)
    elif facts.at("attention.head_count_kv", i):
        yield from _attention(facts, i)
    else:
        yield from _ssm_2(facts)


def _lfm2(facts: Facts, i: int) -> Named:
    e = facts.n_embd
    yield from _norms(facts, "attn_norm", "ffn_norm")
    if facts.at("attention.head_count_kv", i):
        yield from _attention(facts, i, qk_norm=True)
    else:
        yield "shortconv.conv.weight", (facts.get("shortconv.l_cache"), e)
        yield "shortconv.in_proj.weight", (e, 3 * e)
        yield "shortconv.out_proj.weight", (e, e)
    if facts.get("expert_count") and i >= facts.get("leading_dense_block_count"):
        yield from _mixture(facts, facts.get("expert_feed_forward_length"))
    else:
        yield from _ffn(facts, facts.at("feed_forward_length", i))


def _delta_net(facts: Facts, i: int) -> Named:
    e, n_experts = facts.n_embd, facts.get("expert_count")
    yield from _norms(facts, "attn_norm", "post_attention_norm")
    if (i + 1) % facts.get("full_attention_interval", 4) == 0:
        yield from _attention(facts, i, q_times=2, qk_norm=True)
    else:
        yield from _delta_block(facts)
    if not n_experts:
        yield from _ffn(facts, facts.get("feed_forward_length"))
        return
    yield from _experts(facts, facts.get("expert_feed_forward_length"))
    yield "ffn_gate_inp_shexp.weight", (e,)
    yield from _ffn(facts, facts.get("expert_shared_feed_forward_length"), suffix="_shexp")


def _delta_block(facts: Facts) -> Named:
    e, state, heads = facts.n_embd, facts.get("ssm.state_size"), facts.get("ssm.time_step_rank")
    keys, inner = state * facts.get("ssm.group_count"), facts.get("ssm.inner_size")
    yield "attn_qkv.weight", (e, 2 * keys + inner)
    yield "attn_gate.weight", (e, inner)
    yield "ssm_conv1d.weight", (facts.get("ssm.conv_kernel"), 2 * keys + inner)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    if facts.architecture == "qwen3next":
        yield "ssm_ba.weight", (e, 2 * heads)
    else:
        yield "ssm_beta.weight", (e, heads)
        yield "ssm_alpha.weight", (e, heads)
    yield "ssm_norm.weight", (inner // heads,)
    yield "ssm_out.weight", (inner, e)


def _bert(facts: Facts, i: int) -> Named:
    e, width = facts.n_embd, facts.get("feed_forward_length")
    if facts.architecture == "bert":
        for part in "qkv":
            yield f"attn_{part}.weight", (e, e)
            yield f"attn_{part}.bias", (e,)
        yield "attn_output.bias", (e,)
        yield "ffn_up.bias", (width,)
        yield "ffn_down.bias", (e,)
    else:
        yield "attn_qkv.weight", (e, 3 * e)
        yield "ffn_gate.weight", (e, width)
    yield "attn_output.weight", (e, e)
    yield from _ffn(facts, width, gate=False)
    for norm in ("attn_output_norm", "layer_output_norm"):
        yield f"{norm}.weight", (e,)
        yield f"{norm}.bias", (e,)


def _t5(facts: Facts) -> Named:
    e, n_head = facts.n_embd, facts.get("attention.head_count")
    inner = n_head * facts.get("attention.key_length")
    for side, kinds in (("enc", ("attn",)), ("dec", ("attn", "cross_attn"))):
        for i in range(facts.n_layer):
            block = f"{side}.blk.{i}"
            if i == 0:
                yield f"{block}.attn_rel_b.weight", (n_head, 32)
            for kind in kinds:
                yield f"{block}.{kind}_norm.weight", (e,)
                for part in "qkv":
                    yield f"{block}.{kind}_{part}.weight", (e, inner)
                yield f"{block}.{kind}_o.weight", (inner, e)
            yield f"{block}.ffn_norm.weight", (e,)
            for name, shape in _ffn(facts, facts.get("feed_forward_length")):
                yield f"{block}.{name}", shape


_BLOCKS: dict[str, Callable[[Facts, int], Named]] = {
    **dict.fromkeys(
        ("llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gemma-embedding"), _llama
    ),
    **dict.fromkeys((*DENSE, *MIXTURES), _llama),
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "granitehybrid": _granite_hybrid,
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _nemotron_h),
    **dict.fromkeys(("lfm2", "lfm2moe"), _lfm2),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _delta_net),
    **dict.fromkeys(BERTS, _bert),
    "t5": _llama,
}
KNOWN = frozenset(_BLOCKS)
