from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from planners.hardware import Absence, Device, DeviceId, DeviceKind
from planners.instances.absence import NOBODY, absences, is_renamed, known_again, remembered
from planners.settings import DeviceRule
from planners.sizes import GIB
from tests.fakes.machines import LLVMPIPE, nvidia

CARD = nvidia(0, 24.0)
BY_ENGINE = replace(
    CARD,
    device_id=DeviceId("cuda:CUDA0"),
    engine_names=(("cuda", "CUDA0"),),
    total_bytes=int(23.5 * GIB),
    free_bytes=22 * GIB,
)
LOST = f"{CARD.name} ({CARD.device_id})"
DRIVER = "NVML: Driver Not Loaded"


def rule(name: str, *, use: bool | None = None, limit_bytes: int | None = None) -> DeviceRule:
    return DeviceRule(name, limit_bytes=limit_bytes, reserve_bytes=None, use=use)


def missing(
    devices: Sequence[Device],
    *rules: DeviceRule,
    before: Sequence[Device] = (),
    told: str = "",
    silent: Mapping[DeviceId, str] = {},
    faults: Sequence[str] = (),
) -> tuple[Absence, ...]:
    return absences(
        devices,
        rules=rules,
        seen=remembered(remembered({}, before), devices),
        told=(told,) if told else (),
        silent=silent,
        faults=faults,
    )


def test_a_card_that_was_here_and_is_gone_is_missing_for_the_reason_its_source_gave() -> None:
    assert missing([CARD], before=[CARD]) == ()
    assert missing([], before=[CARD], told=DRIVER) == (Absence(LOST, DRIVER),)
    assert missing([], before=[CARD]) == (Absence(LOST, NOBODY),)


def test_a_card_that_no_engine_sees_any_more_is_missing() -> None:
    (absent,) = missing([replace(CARD, engine_names=())], before=[CARD])

    assert absent.reason == "its driver still sees it, but no engine does any more"


@pytest.mark.parametrize("wanting", [rule("vulkan1", use=True), rule("Vulkan1", limit_bytes=1)])
def test_a_device_that_a_rule_uses_or_limits_is_wanted(wanting: DeviceRule) -> None:
    assert missing([CARD], wanting) == (Absence(wanting.name, NOBODY),)
    assert missing([nvidia(1, 8.0)], wanting) == ()


@pytest.mark.parametrize("other", [rule("Vulkan1"), rule("Vulkan1", use=False)])
def test_a_device_that_a_rule_only_mentions_or_refuses_is_not_wanted(other: DeviceRule) -> None:
    assert missing([CARD], other) == ()


def test_a_card_that_left_and_is_refused_now_is_not_missing() -> None:
    assert missing([], rule(CARD.device_id, use=False), before=[CARD]) == ()


def test_a_card_that_left_and_has_a_rule_is_missing_once() -> None:
    assert len(missing([], rule(CARD.device_id, use=True), before=[CARD])) == 1


@pytest.mark.parametrize(
    "device",
    [
        replace(LLVMPIPE, use=True),
        replace(CARD, kind=DeviceKind.REMOTE),
        replace(CARD, use=False),
        replace(CARD, engine_names=()),
    ],
    ids=["software", "remote", "refused", "never usable"],
)
def test_what_was_never_wanted_here_is_not_missed(device: Device) -> None:
    assert missing([], before=[device]) == ()


def test_a_driver_that_fails_from_the_start_is_a_card_missing_whose_name_nobody_knows() -> None:
    assert missing([], faults=[DRIVER]) == (Absence("a card", DRIVER),)


def test_a_fault_that_explains_a_missing_card_is_told_once() -> None:
    assert missing([], before=[CARD], told=DRIVER, faults=[DRIVER]) == (Absence(LOST, DRIVER),)


def test_a_card_that_got_its_address_late_is_not_missing_under_its_engines_name() -> None:
    assert missing([CARD], before=[BY_ENGINE]) == ()


def test_a_card_that_only_its_engine_tells_of_keeps_the_address_it_had() -> None:
    rated = replace(CARD, bandwidth_bytes_per_s=1008e9)

    (again,) = known_again([BY_ENGINE], remembered({}, [rated]))

    assert again == replace(rated, engine_names=BY_ENGINE.engine_names, free_bytes=22 * GIB)


@pytest.mark.parametrize(
    "other",
    [
        replace(BY_ENGINE, free_bytes=None),
        replace(BY_ENGINE, total_bytes=12 * GIB),
        replace(BY_ENGINE, engine_names=(("cuda", "CUDA1"),)),
        replace(BY_ENGINE, kind=DeviceKind.REMOTE),
    ],
    ids=["listed once, not now", "of another size", "another number", "of another machine"],
)
def test_a_device_that_may_be_another_card_keeps_its_engines_name(other: Device) -> None:
    assert known_again([other], remembered({}, [CARD])) == (other,)


def test_a_device_is_not_taken_for_a_card_that_is_here_or_for_either_of_two() -> None:
    twin = replace(CARD, device_id=DeviceId("pci:0000:09:00.0"))

    assert known_again([CARD, BY_ENGINE], remembered({}, [CARD])) == (CARD, BY_ENGINE)
    assert known_again([BY_ENGINE], remembered({}, [CARD, twin])) == (BY_ENGINE,)


def test_two_cards_that_took_turns_under_one_number_are_two() -> None:
    twin = replace(CARD, device_id=DeviceId("pci:0000:09:00.0"))

    assert is_renamed(CARD, BY_ENGINE)
    assert not is_renamed(CARD, twin)


@pytest.mark.parametrize("rules", [(), (rule("rpc:10.0.0.2:50052", limit_bytes=1),)])
def test_a_configured_server_that_is_silent_is_missing_once_for_its_own_reason(
    rules: tuple[DeviceRule, ...],
) -> None:
    server = remote("10.0.0.2:50052")
    why = {server.device_id: "cannot be reached (Connection refused)"}

    (absent,) = missing([server], *rules, told="another source's trouble", silent=why)

    assert absent == Absence(server.name, "cannot be reached (Connection refused)")


def test_a_silent_server_that_nobody_is_to_use_is_not_missing() -> None:
    server = replace(remote("10.0.0.2:50052"), use=False)

    assert missing([server], silent={server.device_id: "no answer within 2 s"}) == ()


def remote(server: str) -> Device:
    name = f"RPC server {server}"
    return Device(DeviceId(f"rpc:{server}"), DeviceKind.REMOTE, name, (), None, None)
