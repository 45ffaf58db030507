from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from planners.sizes import GIB
from supervisor.devices.cgroup import MemoryBound, cpu_quota, memory_bounds

Tree = Callable[[Mapping[str, str]], Path]

V2_MOUNT = "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1_CPU_MOUNT = "1 1 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
V1_MOUNT = "1 1 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def v2(
    path: str, *, limit: int | str, used: int, stat: str = "", high: str = "max"
) -> dict[str, str]:
    group = f"sys/fs/cgroup{path}"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.high": f"{high}\n",
        f"{group}/memory.current": f"{used}\n",
        f"{group}/memory.stat": stat,
    }


def test_every_ancestor_with_a_limit_is_a_bound(tree: Tree) -> None:
    root = tree(
        {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": V2_MOUNT}
        | v2("/a", limit=8 * GIB, used=3 * GIB)
        | v2("/a/b", limit=16 * GIB, used=GIB)
    )

    assert memory_bounds(root) == (
        MemoryBound(limit_bytes=16 * GIB, used_bytes=GIB),
        MemoryBound(limit_bytes=8 * GIB, used_bytes=3 * GIB),
    )


def test_a_group_that_says_max_bounds_nothing(tree: Tree) -> None:
    root = tree(
        {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": V2_MOUNT}
        | v2("/a", limit="max", used=3 * GIB)
    )

    assert memory_bounds(root) == ()


def test_page_cache_and_slab_that_can_be_reclaimed_are_not_used(tree: Tree) -> None:
    stat = f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nslab_reclaimable {GIB}\n"
    root = tree(
        {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": V2_MOUNT}
        | v2("/a", limit=8 * GIB, used=5 * GIB, stat=stat)
    )

    assert memory_bounds(root) == (MemoryBound(limit_bytes=8 * GIB, used_bytes=GIB),)


def test_throttling_from_memory_high_on_is_a_limit_too(tree: Tree) -> None:
    root = tree(
        {"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": V2_MOUNT}
        | v2("/a", limit="max", used=0, high=str(4 * GIB))
    )

    assert memory_bounds(root) == (MemoryBound(limit_bytes=4 * GIB, used_bytes=0),)


def test_v1s_way_to_write_no_limit_bounds_nothing(tree: Tree) -> None:
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/\n",
            "proc/self/mountinfo": V1_MOUNT,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "100\n",
        }
    )

    assert memory_bounds(root) == ()


def test_a_hybrid_machine_reads_the_hierarchy_that_has_the_controller(tree: Tree) -> None:
    root = tree(
        {
            "proc/self/cgroup": "4:memory:/\n0::/user.slice\n",
            "proc/self/mountinfo": V1_MOUNT
            + "2 1 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/unified/user.slice/cgroup.procs": "1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
        }
    )

    assert memory_bounds(root) == (MemoryBound(limit_bytes=GIB, used_bytes=0),)


def test_a_path_above_the_mount_falls_back_to_the_mount(tree: Tree) -> None:
    root = tree(
        {"proc/self/cgroup": "0::/../other\n", "proc/self/mountinfo": V2_MOUNT}
        | v2("", limit=GIB, used=0)
    )

    assert memory_bounds(root) == (MemoryBound(limit_bytes=GIB, used_bytes=0),)


@pytest.mark.parametrize(
    "mountinfo", ["", "garbage\n", "1 1 0:1 / /sys/fs/cgroup rw - \n"], ids=["none", "words", "cut"]
)
def test_what_cannot_be_read_bounds_nothing(tree: Tree, mountinfo: str) -> None:
    root = tree({"proc/self/cgroup": "nonsense\n0::/a\n", "proc/self/mountinfo": mountinfo})

    assert memory_bounds(root) == ()
    assert cpu_quota(root) is None


def test_the_smallest_cpu_quota_of_all_ancestors_counts(tree: Tree) -> None:
    root = tree(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        }
    )

    assert cpu_quota(root) == 1.5


def test_a_v1_quota_of_minus_one_is_none(tree: Tree) -> None:
    root = tree(
        {
            "proc/self/cgroup": "1:cpu,cpuacct:/\n",
            "proc/self/mountinfo": V1_CPU_MOUNT,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )

    assert cpu_quota(root) is None
