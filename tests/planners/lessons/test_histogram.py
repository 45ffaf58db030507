from planners.lessons.histogram import Histogram


def test_a_value_counts_below_its_bound_and_all_above_it() -> None:
    histogram = Histogram((0.1, 1.0))

    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)

    assert list(histogram.cumulative()) == [(0.1, 2), (1.0, 3), (None, 4)]
    assert (histogram.count, round(histogram.total, 6)) == (4, 7.65)
