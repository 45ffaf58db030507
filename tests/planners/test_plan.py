import pytest
from msgspec.structs import replace

from planners.hardware import HOST, DeviceId
from planners.model import ModelId
from planners.placement import plan_launch
from planners.plan import DeviceBytes, LaunchPlan, Shortfall
from planners.reasons import Reason, ReasonKind
from planners.sizes import GIB
from tests.fakes.machines import CUDA, RULES, machine, nvidia, served


@pytest.fixture
def plan() -> LaunchPlan:
    """An 8B model on one card of 24 GiB, four slots."""
    planned = plan_launch(
        served(context=4096, parallel=4),
        hardware=machine(nvidia(0, 24)),
        engines=(CUDA,),
        rules=RULES,
        promised={},
    )
    assert isinstance(planned, LaunchPlan)
    return planned


def test_context_is_what_one_request_may_use(plan: LaunchPlan) -> None:
    assert (plan.n_ctx, plan.n_parallel, plan.context) == (16384, 4, 4096)


def test_the_digest_changes_with_what_is_launched(plan: LaunchPlan) -> None:
    assert replace(plan, n_ubatch=64).digest != plan.digest
    assert replace(plan, swa_full=True).digest != plan.digest
    assert replace(plan, file_key="2").digest != plan.digest


def test_the_digest_ignores_what_is_only_told(plan: LaunchPlan) -> None:
    assert (
        replace(plan, predicted=(), reasons=(Reason(ReasonKind.BATCH, "another"),)).digest
        == plan.digest
    )


def test_bytes_are_summed_per_device(plan: LaunchPlan) -> None:
    gpu = DeviceId("pci:0000:01:00.0")

    assert plan.bytes_on(gpu) > 5 * GIB
    assert plan.bytes_on(DeviceId("another")) == 0


def test_the_upper_bound_is_the_expected_and_the_margin() -> None:
    part = DeviceBytes(HOST, 1, 2, 3, overhead_bytes=4, margin_bytes=5)

    assert (part.total_bytes, part.upper_bytes) == (10, 15)


def test_a_shortfall_names_model_number_and_place() -> None:
    shortfall = Shortfall(ModelId("big"), {HOST: 3 * GIB}, "4.0 GiB are needed")

    assert str(shortfall) == "big does not fit: 4.0 GiB are needed (3.0 GiB on host missing)"


def test_a_shortfall_without_numbers_is_its_reason() -> None:
    assert str(Shortfall(ModelId("m"), {}, "why")) == "m does not fit: why"
