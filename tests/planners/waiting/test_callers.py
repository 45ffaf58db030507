import pytest

from planners.waiting.callers import BadNetwork, CallerRule, callers_of
from planners.waiting.line import Priority

RULES = callers_of(
    [
        CallerRule("10.0.0.0/8", Priority.LOW),
        CallerRule("10.1.0.0/16", Priority.NORMAL),
        CallerRule("10.1.2.3", Priority.HIGH),
        CallerRule("fd00::/8", Priority.LOW),
        CallerRule("k-batch", Priority.LOW),
    ]
)


@pytest.mark.parametrize(
    ("caller", "priority"),
    [
        pytest.param("10.9.9.9", Priority.LOW, id="a network"),
        pytest.param("10.1.9.9", Priority.NORMAL, id="a narrower network"),
        pytest.param("10.1.2.3", Priority.HIGH, id="an address"),
        pytest.param("::ffff:10.9.9.9", Priority.LOW, id="an IPv4 peer of a socket for both"),
        pytest.param("fd00::1", Priority.LOW, id="IPv6"),
        pytest.param("k-batch", Priority.LOW, id="a name"),
        pytest.param("k-other", Priority.NORMAL, id="a name without a rule"),
        pytest.param("127.0.0.1", Priority.NORMAL, id="an address without a rule"),
        pytest.param("", Priority.NORMAL, id="the daemon itself"),
    ],
)
def test_the_narrowest_rule_counts(caller: str, priority: Priority) -> None:
    assert RULES.priority(caller) is priority


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(BadNetwork, match=r"10\.0\.0\.0/33"):
        callers_of([CallerRule("10.0.0.0/33", Priority.LOW)])


def test_a_caller_is_known_by_its_name_too_and_by_itself_first() -> None:
    rules = callers_of([CallerRule("batch", Priority.LOW), CallerRule("1f2e", Priority.HIGH)])

    known = rules.knowing({"0a0b": "batch", "1f2e": "batch", "3c3d": "laptop"})

    priorities = [known.priority(caller) for caller in ("0a0b", "1f2e", "3c3d")]
    assert priorities == [Priority.LOW, Priority.HIGH, Priority.NORMAL]
