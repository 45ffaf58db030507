import pytest

from bench.surface import ROUTES, measured, table

pytestmark = [pytest.mark.llama, pytest.mark.timeout(180)]


def test_each_route_is_asked_of_a_daemon_with_that_many_models() -> None:
    taken = measured(n_models=3, rounds=1)

    told = table(taken, n_models=3).splitlines()
    assert told[0] == "3 models"
    assert [line.split()[0] for line in told[2:]] == list(ROUTES)
    assert all(one.wall_s > 0 and one.n_bytes > 0 for one in taken.values())
