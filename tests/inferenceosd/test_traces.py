import subprocess
import sys
from collections.abc import Mapping

import pytest

from inferenceosd.traces import wants_traces

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
DAEMON_IMPORTS = """
import sys
sys.modules["opentelemetry"] = None  # as where the extra is not installed
import inferenceosd.daemon
"""
ASKED_FOR = """
from contextlib import ExitStack
from inferenceosd.traces import open_traces
print(open_traces({"OTEL_TRACES_EXPORTER": "otlp"}, None, None, ExitStack()))
"""


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        pytest.param({}, False, id="nothing said"),
        pytest.param(ENDPOINT, True, id="an endpoint"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/b"}, True, id="for traces"),
        pytest.param({"OTEL_TRACES_EXPORTER": "console,otlp"}, True, id="an exporter"),
        pytest.param(ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False, id="no exporter"),
        pytest.param(ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, False, id="turned off"),
    ],
)
def test_traces_are_wanted_where_the_standard_variables_say(
    environ: Mapping[str, str], wanted: bool
) -> None:
    assert wants_traces(environ) is wanted


def test_the_daemon_runs_without_the_extra_and_says_so_where_traces_are_asked_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DAEMON_IMPORTS + ASKED_FOR],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "install inferenceosd[otel]" in done.stdout
    assert done.stdout.splitlines()[-1] == "None"
