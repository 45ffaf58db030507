from dataclasses import replace

from planners.hardware import HOST, HardwareProfile
from planners.model import ServedModel
from planners.more import More, with_more
from planners.placement import plan_launch
from planners.settings import PlacementRules
from planners.sizes import GIB
from tests.fakes.machines import CPU, CUDA, LLVMPIPE, RULES, machine, model_info, nvidia, served

CARD = nvidia(0, 4)
ENGINES = (CPU, CUDA)


def more(
    hardware: HardwareProfile, model: ServedModel, *, rules: PlacementRules = RULES
) -> tuple[More, ...]:
    before = plan_launch(model, hardware=hardware, engines=ENGINES, rules=rules, promised={})
    return with_more(
        model,
        before=before,
        hardware=hardware,
        engines=ENGINES,
        rules=rules,
        promised={},
        held={},
    )


def test_a_gib_more_on_a_full_card_brings_layers_and_speed() -> None:
    (found,) = more(machine(CARD), served(context=4096))

    assert found.device_id == CARD.device_id
    assert "1.0 GiB more on card 0 of 4 GiB" in found.gain
    assert "layers on devices, not" in found.gain
    assert "tokens/s, not" in found.gain


def test_a_gib_more_brings_a_larger_context() -> None:
    (found,) = more(machine(nvidia(0, 6.5)), served())

    assert "a context of 16384 tokens, not 8192" in found.gain


def test_a_gib_more_can_be_what_it_takes_to_fit() -> None:
    found = more(machine(host_gib=6), served(model_info(layer_bytes=150 << 20), context=4096))

    assert [(one.device_id, one.n_bytes) for one in found] == [(HOST, GIB)]
    assert "it would fit" in found[0].gain


def test_where_nothing_is_missing_nothing_is_told() -> None:
    model = served(model_info(n_ctx_train=4096))

    assert more(machine(nvidia(0, 24), LLVMPIPE), model) == ()


def test_the_kv_type_that_was_conceded_comes_back() -> None:
    rules = replace(RULES, type_k=None, type_v=None)
    model = served(context=16384, parallel=2)
    hardware = machine(nvidia(0, 8))

    (found,) = more(hardware, model, rules=rules)

    assert "KV cache in f16/f16, not q8_0" in found.gain
