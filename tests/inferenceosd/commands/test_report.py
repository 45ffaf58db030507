"""inferenceosd.commands.report: what people read, to the letter."""

import pytest
from msgspec.structs import replace

from inferenceosd.commands import report
from proxy.admin.models import ModelsReport
from proxy.admin.orders import LoadReport, ReloadReport, UnloadReport
from proxy.admin.records import EventsReport, LogReport
from proxy.admin.status import (
    CallerReport,
    LineReport,
    LockReport,
    StatusReport,
    instance_report,
)
from tests.fakes.admin_service import (
    DAEMON,
    EVENTS,
    FOREVER,
    MODELS,
    NOW_S,
    READY,
    STARTED_AT,
    STATUS,
)

NOW = STARTED_AT + 2 * 3600 + 180

STATUS_TEXT = """\
inferenceosd 0.1.0, pid 4711, up 2h3m, serving 127.0.0.1:11434

MODEL  STATE        PID  BACKEND  LAYERS      CONTEXT   REQUESTS       TOKENS/S  STAYS
qwen   ready       4712  vulkan   Vulkan0:29  4096 × 2  1 + 2 waiting      85.2  busy
phi    backoff 4s     -  cpu      cpu         4096 × 1  0                     -  -

MODEL  DEVICE            PREDICTED  MEASURED   RESERVED  TAKEN
qwen   pci:0000:01:00.0    4.8 GiB   4.8 GiB  128.0 MiB      ?
qwen   host              320.0 MiB         ?        0 B      ?

MODEL  DECODE/S  MEASURED  PROMPT/S  MEASURED   LOAD  USUAL  LEARNED FROM
qwen          -         -         -         -  3.5 s      -  0 launches, 0 requests
phi           -         -         -         -  3.5 s      -  0 launches, 0 requests

phi: died of SIGSEGV (restarted 2 times)

DEVICE            NAME                     ENGINE NAME       TOTAL      FREE       OURS     LIMIT
pci:0000:01:00.0  NVIDIA GeForce RTX 4090  Vulkan0,CUDA0  24.0 GiB  19.0 GiB    4.8 GiB  22.0 GiB
vulkan:Vulkan1    llvmpipe (not used)      Vulkan1               ?         ?        0 B         -
host              AMD Ryzen 9 7950X        -              64.0 GiB  48.0 GiB  320.0 MiB         -

ENGINE  FROM    PATH                     VERSION
vulkan  config  /opt/llama/llama-server  b11434
-       path    /usr/bin/llama-server    refused: built for another CPU

NOT OFFERED       NAMES  WHY
/models/lfs.gguf  lfs    a git-lfs pointer, not a model: run git lfs pull

note: NVML: library not found"""


def test_status_shows_instances_memory_devices_engines_and_what_is_broken() -> None:
    assert report.status_text(STATUS, now=NOW) == STATUS_TEXT


@pytest.mark.parametrize(
    ("lock", "lines"),
    [
        (LockReport(0, "/k", is_open=False, tls_expires_at=None), []),
        (
            LockReport(2, "/k", is_open=False, tls_expires_at=STARTED_AT),
            [
                "locked: callers need an API key (keys: 2)",
                "HTTPS: the certificate is good until 2027-01-15 08:00:00Z",
            ],
        ),
        (
            LockReport(0, "/k", is_open=True, tls_expires_at=None, mistake="/k: chmod 600 it"),
            [
                "OPEN: other machines may use all models without an API key (--insecure)",
                "LOCK: /k: chmod 600 it",
            ],
        ),
    ],
    ids=["as usual", "locked", "open"],
)
def test_status_shows_what_locks_the_port(lock: LockReport, lines: list[str]) -> None:
    status = replace(STATUS, daemon=replace(DAEMON, lock=lock))

    told = report.status_text(status, now=NOW).splitlines()

    assert told[1 : told.index(next(line for line in told if "MODEL" in line))] == [
        part for line in [lines] if line for part in ["", *line]
    ] + [""]


def test_status_of_a_daemon_with_nothing_says_so() -> None:
    status = StatusReport(DAEMON, (), (), (), (), ())

    assert report.status_text(status, now=STARTED_AT) == (
        "inferenceosd 0.1.0, pid 4711, up 0s, serving 127.0.0.1:11434\n\n"
        "no model is loaded\n\n"
        "no llama-server was found"
    )


def test_a_line_shows_who_waits_and_at_which_place() -> None:
    callers = (CallerReport("10.0.0.2", "normal", 1, 1), CallerReport("k-batch", "low", 500, 2))
    status = replace(STATUS, lines=(LineReport("qwen3:32b", 501, 12.4, callers),))

    text = report.status_text(status, now=NOW)

    assert (
        "MODEL      CALLER    PRIORITY  WAITING  PLACE  LONGEST WAIT\n"
        "qwen3:32b  10.0.0.2  normal          1      1  12s\n"
        "qwen3:32b  k-batch   low           500      2  12s\n"
    ) in text + "\n"


def test_a_degraded_machine_says_what_is_missing_before_anything_else() -> None:
    status = replace(STATUS, degraded=("RTX 4090 is missing: NVML: Driver Not Loaded",))

    second = report.status_text(status, now=NOW).splitlines()[2]

    assert second == "DEGRADED: RTX 4090 is missing: NVML: Driver Not Loaded"


def test_until_engines_were_tried_none_is_missing() -> None:
    daemon = replace(DAEMON, has_tried_engines=False)

    text = report.status_text(replace(STATUS, daemon=daemon, engines=()), now=NOW)

    assert "is being tried" in text
    assert "no llama-server was found" not in text


def stays(status: StatusReport) -> str:
    return report.status_text(status, now=NOW).splitlines()[3].split()[-1]


def test_how_long_a_model_stays() -> None:
    idle = replace(READY, running=0, waiting=0, expires_at=NOW + 298)
    overdue = replace(idle, expires_at=NOW - 1)

    shown = [
        stays(replace(STATUS, instances=(instance_report(one, now_s=NOW_S),)))
        for one in (idle, overdue, FOREVER)
    ]

    assert shown == ["4m58s", "0s", "forever"]


def test_a_load_shows_how_far_it_is() -> None:
    loading = replace(instance_report(READY, now_s=NOW_S), state="loading", load_progress=0.42)

    text = report.status_text(replace(STATUS, instances=(loading,)), now=NOW)

    assert "loading 42%" in text


def test_models_are_listed_with_what_they_can_do() -> None:
    assert (
        report.models_text(MODELS)
        == """\
MODEL  ARCH   PARAMS  TYPE       SIZE  TRAINED  CAN               STATE  ALIASES
qwen   qwen2   7.62B  Q4_K_M  4.4 GiB    32768  completion,tools  ready  default

qwen: llama.rope.freq_base is missing: 10000 is assumed

NOT OFFERED       NAMES  WHY
/models/lfs.gguf  lfs    a git-lfs pointer, not a model: run git lfs pull"""
    )


def test_no_models_says_where_to_put_them() -> None:
    text = report.models_text(ModelsReport((), (), dirs=("/srv/models", "/home/me/models")))

    assert text == "no models; put GGUF files into /srv/models or /home/me/models"


def test_events_are_one_line_each() -> None:
    assert (
        report.events_text(EventsReport(EVENTS))
        == """\
TIME                  EVENT             MODEL  REASON
2027-01-15 08:00:00Z  instance.loading  qwen   asked for by 127.0.0.1
2027-01-15 08:00:03Z  instance.ready    qwen   load_s=3.5"""
    )
    assert report.events_text(EventsReport(())) == "no events"


@pytest.mark.parametrize(
    ("unloaded", "said"),
    [
        (UnloadReport("qwen", was_loaded=False, is_pinned=True), "qwen was not loaded"),
        (
            UnloadReport("qwen", was_loaded=True, is_pinned=False),
            "qwen unloads as soon as its requests are done",
        ),
        (
            UnloadReport("qwen", was_loaded=True, is_pinned=True),
            "qwen unloads as soon as its requests are done; it is pinned, and loads again then",
        ),
    ],
    ids=["not loaded", "loaded", "pinned"],
)
def test_who_unloads_a_model_is_told_whether_it_stays_away(
    unloaded: UnloadReport, said: str
) -> None:
    assert report.unload_text(unloaded) == said


def test_the_short_answers() -> None:
    assert report.load_text(LoadReport("qwen", 3.46)) == "qwen loaded in 3.5 s"
    assert report.load_text(LoadReport("qwen", 0.0)) == "qwen was loaded already"
    assert report.log_text(LogReport("qwen", ("a", "b"))) == "a\nb"
    assert report.reload_text(ReloadReport((), ())) == "nothing changed"
    assert report.reload_text(ReloadReport(("qwen restarts",), ("server.listen",))) == (
        "qwen restarts\nserver.listen: takes effect at the next start"
    )
