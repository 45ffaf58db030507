"""inferenceosd.installation: our siblings are ours."""

from inferenceosd.installation import strangers


def test_the_packages_beside_us_are_our_own() -> None:
    assert strangers() is None
