import pytest
from hypothesis import given
from hypothesis import strategies as st

from planners.sizes import GIB, KIB, MIB, BadSize, format_size, parameter_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1024", 1024),
        ("6GiB", 6 * GIB),
        ("6g", 6 * GIB),
        ("512MiB", 512 * MIB),
        ("512 mib", 512 * MIB),
        ("64k", 64 * KIB),
        ("1.5GB", 1_500_000_000),
        ("2TB", 2 * 10**12),
        (" 1 B ", 1),
        ("0.5KiB", 512),
    ],
)
def test_sizes_are_read_with_their_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GiB", "6 gigs", "6GiBs", "1e9", "0x10", "nan", "1,5GiB", "٣GiB", "9" * 19],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadSize) as caught:
        parse_size(text)

    assert caught.value.text == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (6 * GIB, "6.0 GiB"),
        (1536 * MIB, "1.5 GiB"),
        (3 << 40, "3.0 TiB"),
        (-5 * MIB, "-5.0 MiB"),
    ],
)
def test_sizes_are_written_in_their_largest_unit(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(0, 1 << 50))
def test_what_is_written_is_read_back_within_a_rounding(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.06)


@pytest.mark.parametrize(
    ("n_params", "text"),
    [
        (134_515_008, "134.52M"),
        (7_000_000_000, "7B"),
        (7_615_616_512, "7.6B"),
        (22_700_000, "22.70M"),
        (45_000, "45K"),
        (12, "12"),
    ],
)
def test_parameters_are_counted_as_ollama_prints_them(n_params: int, text: str) -> None:
    assert parameter_size(n_params) == text
