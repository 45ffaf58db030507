"""inferenceosd.commands.doctor: facts in, verdicts out."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from inferenceosd.commands.doctor import Check, Disk, Facts, Verdict, checks, has_failed
from inferenceosd.commands.doctor_text import doctor_text
from planners.hardware import Device, DeviceId, DeviceKind, HardwareProfile, Note, NoteKind, Storage
from planners.model import BrokenFile, BrokenKind
from planners.profile_json import decode_profile
from planners.sizes import GIB, MIB
from proxy.admin.status import EngineReport, LockReport
from supervisor.drivers import Card, Drivers, Node
from tests.fakes.admin_service import DAEMON, STATUS

PROFILES = Path(__file__).parents[2] / "fixtures" / "hardware" / "profiles"
NOW = 1_800_000_000.0
VULKAN = EngineReport("/opt/llama-server", "config", "vulkan", "b11434", None)
CUDA = replace(VULKAN, backend="cuda")
NVIDIA = Card("0000:01:00.0", "NVIDIA", "nvidia")
AMD = Card("0000:03:00.0", "AMD", "amdgpu")
RENDER = Node("/dev/dri/renderD128", may_use=True, group="render")
KFD = Node("/dev/kfd", may_use=True, group="render")


def machine(name: str) -> HardwareProfile:
    return decode_profile((PROFILES / f"{name}.json").read_text()).hardware


WELL = Facts(
    config_mistake=None,
    socket_path="/run/inferenceosd/admin.sock",
    status=replace(STATUS, engines=(VULKAN,), broken=(), degraded=()),
    is_running=True,
    version=DAEMON.version,
    port_mistake=None,
    hardware=machine("no-gpu"),
    hardware_mistake=None,
    drivers=Drivers((), (), has_vulkan_loader=True, vulkan_drivers=("lvp_icd.x86_64",)),
    disks=(Disk("state", "/var/lib/inferenceosd", 50 * GIB),),
    hiding=(),
    suspended_s=0.0,
    now=NOW,
)


def locked(
    *,
    keys: int,
    is_open: bool = False,
    tls_expires_at: float | None = None,
    mistake: str | None = None,
) -> Facts:
    assert WELL.status is not None
    lock = LockReport(keys, "/k", is_open, tls_expires_at, mistake)
    return replace(WELL, status=replace(WELL.status, daemon=replace(DAEMON, lock=lock)))


def drivers(*cards: Card, nodes: tuple[Node, ...] = (), loader: bool = True) -> Drivers:
    return replace(WELL.drivers, cards=cards, nodes=nodes, has_vulkan_loader=loader)


def with_broken(path: str, reason: str, *, kind: BrokenKind) -> Facts:
    """All well, but for one file."""
    broken = (BrokenFile(path, reason, kind=kind),)
    return replace(WELL, status=replace(STATUS, engines=(VULKAN,), broken=broken))


def wrong(facts: Facts) -> list[Check]:
    return [check for check in checks(facts) if check.verdict is not Verdict.PASS]


def test_a_machine_that_is_well_passes_every_check() -> None:
    assert wrong(WELL) == []
    assert not has_failed(checks(WELL))


LIMITED = machine("container-cgroup")
TIGHT = replace(LIMITED.host, numa_nodes=machine("no-gpu").host.numa_nodes, cgroup_limit_bytes=GIB)
SLOW = replace(machine("no-gpu"), storage=(Storage("/models", 9 * GIB, 90e6),))
HURRIED = replace(machine("no-gpu"), host=replace(machine("no-gpu").host, psi_some_avg10=35.0))
MISMATCHED = replace(
    machine("no-gpu"), notes=(Note(NoteKind.FAULT, "RM has detected a version mismatch."),)
)
ABSENT = replace(
    machine("no-gpu"), notes=(Note(NoteKind.DRIVER, "libnvidia-ml.so.1 is not installed"),)
)
UNSEEN = replace(
    machine("nvidia-24gb"),
    devices=(replace(machine("nvidia-24gb").devices[0], engine_names=()),),
)
SLICE = replace(machine("nvidia-24gb").devices[0], device_id=DeviceId("uuid:MIG-aaaa"))
SLICED = replace(
    machine("nvidia-24gb"),
    devices=(SLICE, replace(SLICE, device_id=DeviceId("uuid:MIG-bbbb"), engine_names=())),
)
SILENT = replace(
    machine("no-gpu"),
    devices=(
        Device(
            DeviceId("rpc:10.0.0.2:50052"), DeviceKind.REMOTE, "RPC server 10.0.0.2:50052", (),
            None, None,
        ),
    ),
    notes=(
        Note(
            NoteKind.SERVER,
            "RPC server 10.0.0.2:50052: no answer within 2 s; models are placed without it",
            DeviceId("rpc:10.0.0.2:50052"),
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "verdict", "name", "sentence", "remedy"),
    [
        pytest.param(
            replace(WELL, config_mistake="/etc/config.toml:3: log.level: 'loud' is none of them"),
            Verdict.FAIL, "configuration", "/etc/config.toml:3", "docs/config.md",
            id="a wrong setting",
        ),
        pytest.param(
            replace(WELL, is_running=False), Verdict.WARN, "daemon",
            "none answers on /run/inferenceosd/admin.sock", "systemctl start", id="no daemon",
        ),
        pytest.param(
            replace(WELL, version="9.9.9"), Verdict.WARN, "daemon", "inferenceosctl 9.9.9",
            "restart", id="an old daemon",
        ),
        pytest.param(
            replace(WELL, status=replace(STATUS, engines=(VULKAN,), broken=(), degraded=("x",))),
            Verdict.FAIL, "devices", "DEGRADED: x", "use = false", id="a missing device",
        ),
        pytest.param(
            replace(
                WELL, is_running=False, port_mistake="127.0.0.1:11434 is taken by ollama (pid 7)"
            ),
            Verdict.FAIL, "port", "ollama", "server.listen", id="a taken port",
        ),
        pytest.param(
            locked(keys=0, mistake="the API keys in /k cannot be used: its mode is 0644"),
            Verdict.FAIL, "lock", "its mode is 0644", "docs/security.md",
            id="keys that others read",
        ),
        pytest.param(
            locked(keys=0, is_open=True), Verdict.WARN, "lock", "without an API key (--insecure)",
            "inferenceosctl key add", id="an open port",
        ),
        pytest.param(
            locked(keys=1, tls_expires_at=NOW - 3600), Verdict.FAIL, "certificate",
            "it ended 1h ago", "renew", id="a certificate that ended",
        ),
        pytest.param(
            locked(keys=1, tls_expires_at=NOW + 3 * 24 * 3600), Verdict.WARN, "certificate",
            "it ends in 3 days", "renew", id="a certificate that ends soon",
        ),
        pytest.param(
            locked(keys=1, tls_expires_at=NOW + 119 * 60), Verdict.WARN, "certificate",
            "it ends in 1h59m", "renew", id="a certificate that ends today",
        ),
        pytest.param(
            replace(WELL, status=replace(STATUS, engines=(), broken=())),
            Verdict.FAIL, "engine", "no llama-server decodes", "build_backends.sh cpu",
            id="no engine",
        ),
        pytest.param(
            replace(
                WELL,
                status=replace(
                    STATUS,
                    broken=(),
                    engines=(VULKAN, replace(VULKAN, refused="built for another CPU")),
                ),
            ),
            Verdict.WARN, "engine", "built for another CPU", "build", id="a refused engine",
        ),
        pytest.param(
            replace(WELL, drivers=drivers(replace(NVIDIA, driver=None))), Verdict.FAIL, "driver",
            "NVIDIA card 0000:01:00.0 has no driver", "modprobe nvidia", id="a card without driver",
        ),
        pytest.param(
            replace(WELL, drivers=drivers(replace(NVIDIA, driver="nouveau"))), Verdict.WARN,
            "driver", "is held by nouveau", "let nvidia have it", id="a card of another driver",
        ),
        pytest.param(
            replace(WELL, hardware=MISMATCHED), Verdict.FAIL, "driver", "version mismatch",
            "restart the machine", id="a library that does not match",
        ),
        pytest.param(
            replace(WELL, hardware=ABSENT), Verdict.FAIL, "driver", "is not installed",
            "install what is missing", id="a library that is not there",
        ),
        pytest.param(
            replace(
                WELL, hardware=ABSENT, drivers=drivers(replace(NVIDIA, driver="nouveau"))
            ),
            Verdict.WARN, "driver", "is not installed", "install what is missing",
            id="a library that another driver's card may do without",
        ),
        pytest.param(
            replace(WELL, drivers=drivers(AMD, nodes=(replace(RENDER, may_use=False), KFD))),
            Verdict.FAIL, "permissions", "the daemon's user may not use /dev/dri/renderD128",
            "usermod -aG render", id="a device file that is shut",
        ),
        pytest.param(
            replace(
                WELL, drivers=drivers(AMD, nodes=(RENDER, replace(KFD, may_use=False, group="")))
            ),
            Verdict.FAIL, "permissions", "the daemon's user may not use /dev/kfd",
            "a udev rule", id="a device file that is root's alone",
        ),
        pytest.param(
            replace(WELL, drivers=drivers(AMD, nodes=(KFD,))), Verdict.FAIL, "permissions",
            "/dev/dri is not", "--device /dev/dri", id="a container without the card",
        ),
        pytest.param(
            replace(WELL, drivers=drivers(AMD, nodes=(RENDER,))), Verdict.WARN, "permissions",
            "/dev/kfd is missing", "Vulkan works without", id="no kfd",
        ),
        pytest.param(
            replace(WELL, drivers=drivers(AMD, nodes=(RENDER, KFD), loader=False)),
            Verdict.FAIL, "library", "libvulkan.so.1", "apt install", id="no Vulkan loader",
        ),
        pytest.param(
            replace(WELL, hardware=SLICED), Verdict.WARN, "devices", "no engine sees it",
            "CUDA_VISIBLE_DEVICES=MIG-UUID", id="a slice that CUDA does not show",
        ),
        pytest.param(
            replace(WELL, hardware=UNSEEN), Verdict.WARN, "devices", "no engine sees it",
            "build_backends.sh", id="a card no engine sees",
        ),
        pytest.param(
            replace(WELL, hardware=SILENT), Verdict.WARN, "devices",
            "RPC server 10.0.0.2:50052: no answer within 2 s", "start ggml-rpc-server there",
            id="a server that does not answer",
        ),
        pytest.param(
            replace(WELL, hiding=("CUDA_VISIBLE_DEVICES=0",)), Verdict.WARN, "devices",
            "CUDA_VISIBLE_DEVICES=0 hides", "unset", id="a variable that hides",
        ),
        pytest.param(
            replace(WELL, hardware=None, hardware_mistake="the host's memory cannot be read: x"),
            Verdict.FAIL, "devices", "cannot be read", "again", id="hardware that was not read",
        ),
        pytest.param(
            replace(
                WELL,
                hardware=replace(LIMITED, host=TIGHT),
            ),
            Verdict.WARN, "memory", "limits memory to 1.0 GiB", "MemoryMax", id="a tight group",
        ),
        pytest.param(
            replace(WELL, hardware=HURRIED), Verdict.WARN, "memory", "35 %", "memory.limit",
            id="memory pressure",
        ),
        pytest.param(
            with_broken("/m/a.gguf", "part 2 of 3 is missing", kind=BrokenKind.INCOMPLETE),
            Verdict.FAIL, "models", "part 2 of 3 is missing", "download it again",
            id="a missing part",
        ),
        pytest.param(
            with_broken(
                "/m/a.gguf", "cannot be read: Permission denied",
                kind=BrokenKind.UNREADABLE,
            ),
            Verdict.FAIL, "models", "/m/a.gguf: cannot be read", "let the daemon read it",
            id="a model that is not ours to read",
        ),
        pytest.param(
            with_broken(
                "/m/a.gguf", "its file /m/a.gguf: no such file or directory",
                kind=BrokenKind.ABSENT,
            ),
            Verdict.FAIL, "models", "no such file", "mend the path in [[model]]",
            id="a rule whose path leads nowhere",
        ),
        pytest.param(
            with_broken("/m", "cannot be searched", kind=BrokenKind.FOLDER),
            Verdict.FAIL, "models", "cannot be searched", "make it",
            id="a folder of models that is not there",
        ),
        pytest.param(
            with_broken("qwn", "a rule without a file", kind=BrokenKind.RULE),
            Verdict.FAIL, "models", "qwn: a rule without a file", "mend the name in [[model]]",
            id="a rule for a model that is not there",
        ),
        pytest.param(
            replace(WELL, strangers=("group 'g' names no model with 'qwn'",)),
            Verdict.WARN, "groups", "names no model with 'qwn'", "mend the name",
            id="a group with a member that is no model",
        ),
        pytest.param(
            replace(WELL, disks=(Disk("state", "/var/lib/x", 20 * MIB),)), Verdict.FAIL, "disk",
            "/var/lib/x (state) has 20.0 MiB left", "free 100.0 MiB", id="a full disk",
        ),
        pytest.param(
            replace(WELL, disks=(Disk("models", "/m", GIB),)), Verdict.WARN, "disk",
            "has 1.0 GiB left", "free 5.0 GiB", id="no room for models",
        ),
        pytest.param(
            replace(WELL, disks=(Disk("models", "/m", None),)), Verdict.WARN, "disk",
            "/m (models) is not there, or", "make the folder", id="no folder",
        ),
        pytest.param(
            replace(WELL, hardware=SLOW), Verdict.WARN, "disk", "reads 90 MB/s", "SSD",
            id="a slow disk",
        ),
        pytest.param(
            replace(
                WELL,
                suspended_s=7200.0,
                status=replace(STATUS, engines=(CUDA,), broken=()),
                hardware=UNSEEN,
            ),
            Verdict.FAIL, "sleep", "slept for 2h in all, and CUDA sees no card",
            "modprobe nvidia_uvm", id="CUDA lost in sleep",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_remedy(
    facts: Facts, verdict: Verdict, name: str, sentence: str, remedy: str
) -> None:
    told = [check for check in wrong(facts) if (check.name, check.verdict) == (name, verdict)]

    assert any(sentence in check.sentence and remedy in check.remedy for check in told), told
    assert has_failed(checks(facts)) >= (verdict is Verdict.FAIL)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (replace(WELL, suspended_s=60.0), "the machine slept for 1m in all since it booted"),
        (
            replace(WELL, suspended_s=60.0, status=replace(STATUS, resumed_at=NOW - 180)),
            "the machine woke 3m ago, and devices were read anew",
        ),
    ],
)
def test_sleep_that_did_no_harm_is_told(facts: Facts, sentence: str) -> None:
    (check,) = [check for check in checks(facts) if check.name == "sleep"]

    assert (check.verdict, check.sentence) == (Verdict.PASS, sentence)


@pytest.mark.parametrize(
    ("facts", "sentences"),
    [
        (WELL, ["only this machine reaches the port, and needs no API key"]),
        (
            locked(keys=2, tls_expires_at=NOW + 90 * 24 * 3600),
            ["callers need an API key (keys: 2)", "it is good for 90 days"],
        ),
    ],
    ids=["no keys", "keys and TLS"],
)
def test_a_port_that_is_locked_is_said_to_be(facts: Facts, sentences: list[str]) -> None:
    told = [check for check in checks(facts) if check.name in ("lock", "certificate")]

    assert [check.sentence for check in told] == sentences
    assert {check.verdict for check in told} == {Verdict.PASS}


def test_cards_that_are_well_are_named() -> None:
    facts = replace(
        WELL,
        drivers=drivers(NVIDIA, AMD, nodes=(RENDER, KFD)),
        hardware=machine("nvidia-24gb"),
    )

    told = [check.sentence for check in checks(facts)]

    assert wrong(facts) == []
    assert "NVIDIA card 0000:01:00.0 is driven by nvidia" in told
    assert "engines can use NVIDIA GeForce RTX 4090" in told
    assert "the daemon's user may use /dev/dri/renderD128, /dev/kfd" in told


def test_while_engines_are_tried_none_is_missing() -> None:
    trying = replace(STATUS, daemon=replace(DAEMON, has_tried_engines=False), engines=(), broken=())

    (check,) = wrong(replace(WELL, status=trying))

    assert check.verdict is Verdict.WARN
    assert "still being tried" in check.sentence


def test_checks_are_printed_with_marks_remedies_and_a_count() -> None:
    found = (
        Check("port", Verdict.PASS, "it is free"),
        Check("engine", Verdict.FAIL, "none decodes", "build one"),
    )

    assert doctor_text(found) == (
        "pass  port    it is free\n"
        "FAIL  engine  none decodes\n"
        "              → build one\n"
        "\n"
        "1 of 2 checks failed"
    )
    assert doctor_text(found[:1]).endswith("nothing failed in 1 checks")


def test_a_used_engine_is_named_with_its_path() -> None:
    (check,) = [check for check in checks(WELL) if check.name == "engine"]

    assert check.sentence == "decoding on this processor: vulkan (/opt/llama-server)"
