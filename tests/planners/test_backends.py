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
