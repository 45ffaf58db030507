import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.vectors import unit_vector


@given(st.lists(st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=9))
def test_a_unit_vector_has_length_1(vector: list[float]) -> None:
    assert sum(x * x for x in unit_vector(vector)) == pytest.approx(1.0)


def test_fewer_dimensions_are_cut_and_normed_again() -> None:
    assert unit_vector([3.0, 4.0, 12.0], 2) == [0.6, 0.8]
    assert unit_vector([0.0, 0.0]) == [0.0, 0.0]
