import pytest
from msgspec.structs import replace

from planners.errors import PlanError
from planners.hardware import HOST, DeviceId
from planners.layout.asked import asked, ubatches
from planners.lessons.rates import Rate, Rates, rates
from planners.reasons import Price, Reason, ReasonKind, Unit
from tests.fakes.machines import LLAMA_8B, RULES, host, machine, model_info, served

CARD: Rates = {HOST: Rate(40e9, 0.2e12), DeviceId("card"): Rate(500e9, 50e12)}


def cores(n_physical_cores: int) -> Rates:
    """The rates of a processor alone, on all of its cores but one."""
    hardware = replace(machine(), host=host(n_physical_cores=n_physical_cores))
    return rates(hardware, n_threads=n_physical_cores - 1)


EMBEDDER = model_info(pooling="mean", n_ctx_train=8192)


@pytest.mark.parametrize(
    ("context", "of_rules", "n_ctx_train", "contexts"),
    [
        pytest.param(None, None, 131072, (32768, 16384, 8192, 4096, 2048), id="a ladder"),
        pytest.param(None, None, 8192, (8192, 4096, 2048), id="up to what it was trained for"),
        pytest.param(None, None, 512, (512,), id="however little"),
        pytest.param(3000, None, 131072, (3072,), id="as asked, padded"),
        pytest.param(None, 5000, 131072, (5120,), id="as the rules say"),
        pytest.param(1024, 5000, 131072, (1024,), id="the model before the rules"),
        pytest.param(200_000, None, 8192, (8192,), id="cut to what it was trained for"),
    ],
)
def test_the_contexts_to_choose_from(
    context: int | None, of_rules: int | None, n_ctx_train: int, contexts: tuple[int, ...]
) -> None:
    model = served(model_info(n_ctx_train=n_ctx_train), context=context)

    assert asked(model, rules=replace(RULES, context=of_rules)).contexts == contexts


def test_cutting_a_context_is_told() -> None:
    notes = asked(served(model_info(n_ctx_train=8192), context=200_000), rules=RULES).notes

    assert notes == (
        Reason(
            ReasonKind.CONTEXT_CUT,
            "context 200000 is cut to 8192, the most it was trained for",
            price=Price(Unit.CONTEXT, had=8192, would_be=200_000),
        ),
    )


@pytest.mark.parametrize(
    ("of_model", "of_rules", "n_parallel"),
    [(None, None, 1), (None, 4, 4), (2, 4, 2)],
)
def test_slots_are_the_models_then_the_rules_then_one(
    of_model: int | None, of_rules: int | None, n_parallel: int
) -> None:
    wish = asked(served(parallel=of_model), rules=replace(RULES, parallel=of_rules))

    assert wish.n_parallel == n_parallel


def test_warnings_of_the_file_are_handed_on() -> None:
    info = replace(LLAMA_8B, warnings=("a key is missing",))

    assert asked(served(info), rules=RULES).notes == (Reason(ReasonKind.FILE, "a key is missing"),)


def test_an_unknown_cache_type_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="'q9' is unknown; it can be one of bf16, f16"):
        asked(served(), rules=replace(RULES, type_k="q9"))


def test_a_latent_cache_has_one_type() -> None:
    layer = replace(LLAMA_8B.layers[0], n_head_kv=1, k_width=576, v_width=0)
    info = replace(LLAMA_8B, layers=(layer,))

    wish = asked(served(info), rules=replace(RULES, type_k="q8_0", type_v="f16"))

    assert wish.types == (("q8_0", "q8_0"),)
    assert "one row for both" in wish.notes[0].text


@pytest.mark.parametrize("n_head_kv", [1, 2])
def test_heads_that_no_block_divides_are_kept_in_f16(n_head_kv: int) -> None:
    width = 80 * n_head_kv  # two heads of 80 make rows of 160, which blocks of 32 divide
    layer = replace(LLAMA_8B.layers[0], n_head_kv=n_head_kv, k_width=width, v_width=width)
    info = replace(LLAMA_8B, layers=(layer,))

    wish = asked(served(info), rules=replace(RULES, type_k="q8_0", type_v="q8_0"))

    assert wish.types == (("f16", "f16"),)
    assert "f16, not q8_0/q8_0" in wish.notes[0].text


def test_without_flash_attention_v_is_not_quantised() -> None:
    info = replace(LLAMA_8B, architecture="grok")

    wish = asked(served(info), rules=replace(RULES, type_k="q8_0", type_v="q8_0"))

    assert (wish.types, wish.flash_attn) == ((("q8_0", "f16"),), False)


def test_an_embedding_model_reads_an_input_in_one_ubatch() -> None:
    wish = asked(served(EMBEDDER), rules=RULES)

    assert wish.contexts == (2048, 1024, 512)
    assert ubatches(wish, EMBEDDER, context=2048, rates=CARD) == (2048,)


@pytest.mark.parametrize("n_parallel", [1, 2, 3, 5])
def test_the_slots_of_an_encoder_divide_its_ubatch(n_parallel: int) -> None:
    wish = asked(served(EMBEDDER, parallel=n_parallel), rules=RULES)

    (size,) = ubatches(wish, EMBEDDER, context=512, rates=CARD)

    assert size % n_parallel == 0
    assert size >= 512


def test_devices_try_512_first_and_never_more_than_the_context() -> None:
    wish = asked(served(), rules=RULES)

    assert ubatches(wish, LLAMA_8B, context=4096, rates=CARD) == (512, 256, 128)
    assert ubatches(wish, LLAMA_8B, context=256, rates=CARD) == (256, 128)


@pytest.mark.parametrize(
    ("n_params", "n_cores", "largest"),
    [
        pytest.param(135_000_000, 2, 32, id="a small model on two cores"),
        pytest.param(135_000_000, 8, 256, id="a small model on eight"),
        pytest.param(8_000_000_000, 8, 32, id="a larger model on eight"),
        pytest.param(70_000_000_000, 2, 32, id="a huge one, hopeless"),
    ],
)
def test_a_processor_reads_two_batches_in_about_a_second(
    n_params: int, n_cores: int, largest: int
) -> None:
    info = replace(LLAMA_8B, n_params=n_params)
    wish = asked(served(info), rules=RULES)

    sizes = ubatches(wish, info, context=4096, rates=cores(n_cores))

    assert sizes[0] == largest


def test_experts_that_rest_cost_no_time() -> None:
    dense = replace(LLAMA_8B, n_params=8_000_000_000)
    sparse = replace(model_info(expert_bytes=100 << 20), n_params=8_000_000_000)
    wish = asked(served(dense), rules=RULES)
    many = cores(32)

    assert (
        ubatches(wish, sparse, context=4096, rates=many)[0]
        > ubatches(wish, dense, context=4096, rates=many)[0]
    )
