"""Open files: how many the daemon may have, and how many callers that makes."""

import resource
from contextlib import suppress

from msgspec.structs import replace

from proxy.edge.crowd import CrowdLimits

MOST_DESCRIPTORS = 1 << 16  # the service unit's LimitNOFILE
LEAST_DESCRIPTORS = 64  # an idle daemon has two dozen open; a launch and its callers come on top


class TooFewDescriptors(Exception):
    """The daemon may not open the files that it needs."""

    def __init__(self, granted: int) -> None:
        self.granted = granted
        super().__init__(
            f"it may open {granted} files at once and needs {LEAST_DESCRIPTORS} at the least; "
            "raise the limit (ulimit -n, or LimitNOFILE= of its unit)"
        )


def claim_descriptors() -> None:
    """Raise the soft limit of open files to the hard one: each caller in line takes one.

    Shells grant 1024, fewer than the callers that three models may keep waiting. Raises
    TooFewDescriptors.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # macOS: no more than OPEN_MAX, whatever is granted
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < LEAST_DESCRIPTORS:
        raise TooFewDescriptors(most)


def granted(crowd: CrowdLimits) -> CrowdLimits:
    """`crowd`, as far as descriptors go: a caller takes one, and its child's connection another."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return replace(crowd, in_all=min(crowd.in_all, most // 2))
