import resource

from inferenceosd.descriptors import MOST_DESCRIPTORS, claim_descriptors, granted
from proxy.edge.crowd import CrowdLimits


def test_the_daemon_may_open_as_many_files_as_it_is_granted() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        claim_descriptors()
        claimed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert claimed == min(hard, MOST_DESCRIPTORS)


def test_callers_are_no_more_than_half_the_files_that_may_be_open() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        few = granted(CrowdLimits(in_all=4096, per_address=7))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert few == CrowdLimits(in_all=128, per_address=7)
