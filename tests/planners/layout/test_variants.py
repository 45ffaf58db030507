"""planners.layout.variants: which of a repository's files is the one for a machine."""

import pytest
from msgspec.structs import replace

from planners.hardware import Device
from planners.layout.outlook import Surroundings, outlook
from planners.layout.variants import Candidate, Fit, estimated, ranked, why
from planners.model import WeightInfo
from planners.plan import Shortfall
from planners.sizes import GIB
from tests.fakes.machines import CPU, CUDA, LLAMA_8B, RULES, machine, nvidia, served

AROUND = Surroundings(engines=(CUDA, CPU), rules=RULES, promised={}, held={})
SIZES_GIB = {"F16": 15.0, "Q8_0": 8.0, "Q6_K": 6.1, "Q4_K_M": 4.6, "Q4_0": 4.3, "Q2_K": 3.0}


def planned(
    *devices: Device, host_gib: float = 24.0, context: int | None = None
) -> tuple[Candidate, ...]:
    """An 8B model's files, ranked for such a machine."""
    hardware = machine(*devices, host_gib=host_gib)
    found = []
    for label, gib in SIZES_GIB.items():
        info = estimated(LLAMA_8B, label=label, size_bytes=int(gib * GIB))
        answer = outlook(served(info, context=context), hardware, AROUND).answer
        found.append(Candidate(label, label, info.file_bytes, info, answer, is_estimate=True))
    return ranked(found, context=context)


@pytest.mark.parametrize(
    ("gib", "pick"), [(24.0, "Q8_0"), (12.0, "Q8_0"), (9.0, "Q6_K"), (7.0, "Q4_K_M")]
)
def test_the_best_quality_that_fits_whole_on_the_card_is_the_pick(gib: float, pick: str) -> None:
    order = planned(nvidia(0, gib))

    assert (order[0].tag, order[0].fit) == (pick, Fit.DEVICES)
    assert f"{pick} has the best quality" in why(order, context=None)


def test_a_context_that_is_asked_for_must_fit_with_it() -> None:
    short, long = (planned(nvidia(0, 12.0), context=n)[0] for n in (4096, 65536))

    assert short.tag == "Q8_0"
    assert long.context == 65536
    assert long.size_bytes < short.size_bytes


def test_no_more_context_is_wanted_than_the_model_was_trained_for() -> None:
    order = planned(nvidia(0, 24.0), context=1 << 20)

    assert order[0].fit is Fit.DEVICES
    assert order[0].context == LLAMA_8B.n_ctx_train
    assert "best quality" in why(order, context=1 << 20)


def test_of_those_that_do_not_fit_whole_the_fastest_is_the_pick() -> None:
    order = planned(nvidia(0, 3.0))

    assert order[0].fit is not Fit.DEVICES
    rates = [one.tokens_per_s or 0.0 for one in order if one.context >= 8192]
    assert rates == sorted(rates, reverse=True)
    assert "fits whole" in why(order, context=None)


def test_where_there_is_no_card_the_hosts_memory_is_the_fastest() -> None:
    order = planned(host_gib=12.0)

    assert (order[0].tag, order[0].fit) == ("Q8_0", Fit.HOST)
    assert order[-1].fit is Fit.NONE
    assert order[-1].tag == "F16"


def test_where_none_fits_it_is_said_by_how_much() -> None:
    order = planned(host_gib=1.0)

    assert {one.fit for one in order} == {Fit.NONE}
    assert isinstance(order[0].answer, Shortfall)
    assert "none fits this machine: " in why(order, context=None)


def test_an_estimate_is_the_same_model_of_another_size() -> None:
    norm = WeightInfo("attn_norm.weight", (4096,), 16384, "f32")
    matrix = WeightInfo("attn_q.weight", (4096, 4096), 1000, "q4_k")
    layer = replace(LLAMA_8B.layers[0], weights=(norm, matrix))
    info = replace(LLAMA_8B, layers=(layer, layer))

    made = estimated(info, label="UD-Q8_K_XL", size_bytes=2 * info.file_bytes)

    assert made.layers[0].weight_bytes == 2 * layer.weight_bytes
    assert made.layers[0].weights == (norm, replace(matrix, n_bytes=2000, type_name="q8_k"))
    assert made.layers[0] is made.layers[1]
    assert (made.n_params, made.n_ctx_train) == (info.n_params, info.n_ctx_train)
    assert made.digest != info.digest
