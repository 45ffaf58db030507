from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from planners.hardware import NumaNode
from planners.sizes import GIB, KIB
from supervisor.devices.host import HostSource, cpu_identity

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware"
Tree = Callable[[Mapping[str, str]], Path]

MEMINFO = "MemTotal: 16000000 kB\nMemFree: 1000 kB\nMemAvailable: 9000000 kB\n"


def test_a_machine_without_limits_offers_what_the_kernel_says_is_available() -> None:
    host = HostSource(FIXTURES / "vm-cgroup-v1").read()

    assert host.total_bytes == 24684092 * KIB
    assert host.total_bytes // 2 < host.available_bytes < host.total_bytes
    assert host.cgroup_limit_bytes is None
    assert (host.n_cores, host.n_physical_cores) == (2, 2)
    assert host.cpu_name == "AMD EPYC"
    assert host.psi_some_avg10 == 0.0


def test_the_tightest_ancestor_of_a_v2_group_decides() -> None:
    host = HostSource(FIXTURES / "container-cgroup-v2").read()

    # 12 GiB less 9 GiB used, of which 6 GiB of page cache and 0.5 GiB of slab can go.
    assert host.cgroup_limit_bytes == 12 * GIB
    assert host.total_bytes == 12 * GIB
    assert host.available_bytes == int(9.5 * GIB)
    assert (host.n_cores, host.n_physical_cores) == (2, 2)
    assert host.psi_some_avg10 == 1.53


def test_a_v1_container_that_cannot_see_its_path_is_its_mount() -> None:
    host = HostSource(FIXTURES / "container-cgroup-v1").read()

    assert host.cgroup_limit_bytes == 8 * GIB
    assert host.available_bytes == 5 * GIB
    assert host.n_cores == 1
    assert host.psi_some_avg10 is None


def test_available_never_exceeds_what_the_whole_machine_has(tree: Tree) -> None:
    root = tree(
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.max": str(12 * GIB),
            "sys/fs/cgroup/memory.current": "0",
        }
    )

    assert HostSource(root).read().available_bytes == 9000000 * KIB


def test_a_limit_above_the_machine_is_none(tree: Tree) -> None:
    root = tree(
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.max": str(64 * GIB),
            "sys/fs/cgroup/memory.current": "0",
        }
    )

    host = HostSource(root).read()

    assert host.cgroup_limit_bytes is None
    assert host.total_bytes == 16000000 * KIB


def test_hyperthreads_count_once_as_physical_cores_and_affinity_counts(tree: Tree) -> None:
    cpus = [f"processor : {n}\nphysical id : 0\ncore id : {n // 2}\n" for n in range(8)]
    root = tree(
        {
            "proc/meminfo": MEMINFO,
            "proc/cpuinfo": "\n".join(cpus),
            "proc/self/status": "Cpus_allowed_list:\t0-3,6\n",
        }
    )

    host = HostSource(root).read()

    assert (host.n_cores, host.n_physical_cores) == (5, 3)


@pytest.mark.parametrize(("flags", "has"), [("avx2 amx_int8 amx_tile", True), ("avx2", False)])
def test_a_processor_with_tiles_is_known_by_its_flags(tree: Tree, flags: str, has: bool) -> None:
    root = tree({"proc/meminfo": MEMINFO, "proc/cpuinfo": f"processor: 0\nflags: {flags}\n"})

    assert HostSource(root).read().has_tiles is has


def test_an_arm_cpuinfo_without_cores_counts_all_it_may_use(tree: Tree) -> None:
    root = tree(
        {
            "proc/meminfo": MEMINFO,
            "proc/cpuinfo": "processor : 0\nCPU part : 0xd0c\n\nprocessor : 1\n",
            "proc/self/status": "Cpus_allowed_list:\t0-1\n",
        }
    )

    host = HostSource(root).read()

    assert (host.n_cores, host.n_physical_cores) == (2, 2)


@pytest.mark.parametrize("text", ["", "some total=5\n", "full avg10=1.00\n"])
def test_pressure_that_is_not_told_is_unknown_and_not_zero(tree: Tree, text: str) -> None:
    root = tree({"proc/meminfo": MEMINFO, "proc/pressure/memory": text})

    assert HostSource(root).read().psi_some_avg10 is None


def test_a_machine_without_proc_is_still_read(tmp_path: Path) -> None:
    host = HostSource(tmp_path).read()

    assert 0 < host.available_bytes <= host.total_bytes
    assert host.n_cores >= 1
    assert host.n_physical_cores >= 1


def test_this_machine_can_be_read() -> None:
    host = HostSource().read()

    assert 0 < host.available_bytes <= host.total_bytes


def test_a_cpu_is_known_by_its_name_and_abilities(tree: Tree) -> None:
    old = tree({"proc/cpuinfo": "processor: 0\nmodel name: X\nflags: sse2 avx2\ncpu MHz: 1000\n"})
    same = cpu_identity(old)

    tree({"proc/cpuinfo": "processor: 0\nmodel name: X\nflags: sse2 avx2\ncpu MHz: 3000\n"})
    assert cpu_identity(old) == same

    tree({"proc/cpuinfo": "processor: 0\nmodel name: X\nflags: sse2 avx2 avx512f\n"})
    assert cpu_identity(old) != same


def test_memory_nodes_are_listed_by_number_with_their_share(tree: Tree) -> None:
    nodes = "sys/devices/system/node"
    root = tree(
        {
            "proc/meminfo": MEMINFO,
            f"{nodes}/node10/meminfo": "Node 10 MemTotal:       1024 kB\n",
            f"{nodes}/node10/cpulist": "\n",
            f"{nodes}/node0/meminfo": "Node 0 MemTotal:       2048 kB\nNode 0 MemFree: 5 kB\n",
            f"{nodes}/node0/cpulist": "0-3,8\n",
        }
    )

    assert HostSource(root).read().numa_nodes == (
        NumaNode(0, 2048 * KIB, 5),
        NumaNode(10, 1024 * KIB, 0),
    )
