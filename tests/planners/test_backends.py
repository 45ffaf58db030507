import pytest
from msgspec.structs import replace

from planners.backends import Engine, preferred


def engine(backend: str, path: str = "/opt/llama-server") -> Engine:
    return Engine(
        engine_id="0" * 12,
        backend=backend,
        path=path,
        source="built",
        env=(),
        flags=frozenset(),
        devices=(),
        version="1",
    )


def backends(engines: tuple[Engine, ...]) -> list[str]:
    return [each.backend for each in engines]


def test_vendor_backends_come_before_vulkan_and_vulkan_before_the_cpu() -> None:
    found = [engine(b) for b in ("cpu", "vulkan", "metal", "hip", "cuda")]

    assert backends(preferred(found)) == ["cuda", "hip", "metal", "vulkan", "cpu"]


def test_an_explicit_order_wins_and_the_others_follow_in_theirs() -> None:
    found = [engine(b) for b in ("cpu", "cuda", "vulkan")]

    assert backends(preferred(found, order=("vulkan",))) == ["vulkan", "cuda", "cpu"]


def test_engines_of_one_backend_keep_the_order_they_were_found_in() -> None:
    found = [engine("cpu", "/first"), engine("vulkan", "/own"), engine("cpu", "/second")]

    assert [e.path for e in preferred(found)] == ["/own", "/first", "/second"]


def test_a_backend_nobody_ranked_comes_last() -> None:
    found = [engine("sycl"), engine("cpu")]

    assert backends(preferred(found)) == ["cpu", "sycl"]


def test_one_that_was_measured_to_be_faster_on_the_same_devices_goes_first() -> None:
    hip, vulkan = replace(engine("hip"), engine_id="h"), replace(engine("vulkan"), engine_id="v")
    speeds = {"h": {"gpu": 40.0}, "v": {"gpu": 50.0}}

    assert backends(preferred([hip, vulkan], measured=speeds)) == ["vulkan", "hip"]


@pytest.mark.parametrize(
    "speeds",
    [
        {"h": {"gpu": 46.0}, "v": {"gpu": 50.0}},
        {"h": {"gpu": 40.0}, "v": {"other gpu": 50.0}},
        {"v": {"gpu": 50.0}},
    ],
    ids=["by-a-hair", "on-another-device", "never-compared"],
)
def test_what_was_measured_does_not_change_the_order_where_it_tells_too_little(
    speeds: dict[str, dict[str, float]],
) -> None:
    hip, vulkan = replace(engine("hip"), engine_id="h"), replace(engine("vulkan"), engine_id="v")

    assert backends(preferred([hip, vulkan], measured=speeds)) == ["hip", "vulkan"]


def test_an_explicit_order_outranks_what_was_measured() -> None:
    hip, vulkan = replace(engine("hip"), engine_id="h"), replace(engine("vulkan"), engine_id="v")
    speeds = {"h": {"gpu": 40.0}, "v": {"gpu": 50.0}}

    assert backends(preferred([vulkan, hip], order=("hip",), measured=speeds)) == ["hip", "vulkan"]
