"""proxy.admin.status: from the fleet's values to flat ones."""

import math

import msgspec
from msgspec.structs import replace

from planners.hardware import HOST, Absence, DeviceId
from planners.plan import DeviceBytes
from planners.sizes import GIB, MIB
from proxy.admin.status import InstanceReport, instance_report, status_report
from tests.fakes.admin_service import (
    CRASHED,
    DAEMON,
    FOREVER,
    GPU,
    HARDWARE,
    NOW_S,
    READY,
    STARTED_AT,
)


def test_forever_survives_json_that_knows_no_infinity() -> None:
    report = instance_report(FOREVER, now_s=NOW_S)

    sent = msgspec.json.encode(report)

    assert msgspec.json.decode(sent, type=InstanceReport) == report
    assert (report.stays_forever, report.expires_at) == (True, None)


def test_an_idle_instance_says_when_it_goes() -> None:
    idle = replace(READY, running=0, waiting=0, expires_at=1_800_000_300.0)

    report = instance_report(idle, now_s=NOW_S)

    assert (report.stays_forever, report.expires_at) == (False, 1_800_000_300.0)


def test_a_retry_is_told_in_seconds_from_now() -> None:
    assert instance_report(CRASHED, now_s=NOW_S).retry_in_s == 4.0
    assert instance_report(CRASHED, now_s=NOW_S + 9).retry_in_s == 0.0
    assert instance_report(replace(CRASHED, retry_at_s=math.inf), now_s=0).retry_in_s is None


def test_ours_is_measured_where_the_engine_told_and_predicted_elsewhere() -> None:
    loading = replace(READY, measured=())

    status = status_report(
        DAEMON,
        instances=(READY, loading, CRASHED),
        hardware=HARDWARE,
        engines=(),
        rejected=(),
        broken=(),
        now_s=NOW_S,
    )

    ours = {device.device: device.ours_bytes for device in status.devices}
    measured = 4 * GIB + 812 * MIB
    predicted = 4 * GIB + 768 * MIB
    assert ours[GPU] == measured + predicted
    assert ours[HOST] == 2 * 320 * MIB


def test_ours_follows_a_card_that_is_known_by_its_address_since_the_launch() -> None:
    by_name = DeviceId(f"{READY.plan.backend}:{READY.plan.devices[0][1]}")
    parts = [
        tuple(replace(p, device_id=by_name) if p.device_id == GPU else p for p in told)
        for told in (READY.plan.predicted, READY.measured)
    ]
    devices = tuple((by_name, name, layers) for _, name, layers in READY.plan.devices)
    plan = replace(READY.plan, devices=devices, predicted=parts[0])
    renamed = replace(READY, plan=plan, measured=parts[1])

    status = status_report(
        DAEMON, instances=(renamed,), hardware=HARDWARE, engines=(), rejected=(), broken=(), now_s=0
    )

    ours = {device.device: device.ours_bytes for device in status.devices}
    assert ours[GPU] == 4 * GIB + 812 * MIB


def test_a_process_that_is_gone_takes_nothing() -> None:
    gone = replace(CRASHED, measured=(DeviceBytes(GPU, GIB, 0, 0),))

    status = status_report(
        DAEMON, instances=(gone,), hardware=HARDWARE, engines=(), rejected=(), broken=(), now_s=0
    )

    assert [device.ours_bytes for device in status.devices] == [0, 0, 0]


def test_a_machine_without_a_wanted_device_is_degraded_with_the_reason() -> None:
    absent = (Absence("RTX 4090", "NVML: Driver Not Loaded"),)

    status = status_report(
        DAEMON,
        instances=(),
        hardware=replace(HARDWARE, absent=absent),
        engines=(),
        rejected=(),
        broken=(),
        now_s=0,
        resumed_at=STARTED_AT,
    )

    assert status.state == "degraded"
    assert status.degraded == ("RTX 4090 is missing: NVML: Driver Not Loaded",)
    assert status.resumed_at == STARTED_AT


def test_before_the_first_probe_there_are_no_devices() -> None:
    status = status_report(
        DAEMON, instances=(), hardware=None, engines=(), rejected=(), broken=(), now_s=0
    )

    assert status.devices == ()
