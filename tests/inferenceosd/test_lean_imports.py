"""inferenceosd.lean_imports: what a start leaves out, in processes of their own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

DAEMON = """
import os, signal, socket, sys, threading
from inferenceosd.start import main

answered = threading.Event()

class JournalHeldUntilAnswered:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sqlite_utils":
            answered.wait(30)
            print(*sys.modules if answered.is_set() else ())

def ask(port):
    while True:
        with socket.socket() as asked:
            try:
                asked.connect(("127.0.0.1", port))
            except ConnectionRefusedError:
                continue
            asked.sendall(b"GET /api/version HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n")
            assert asked.recv(4096).startswith(b"HTTP/1.1 200")
            break
    answered.set()
    os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, JournalHeldUntilAnswered)
threading.Thread(target=ask, args=[int(sys.argv.pop(1))], daemon=True).start()
main()
"""
"""A daemon that prints what it had imported when its port first answered, and stops."""
LATE = (
    "sqlite_utils", "starlette", "prometheus_client", "opentelemetry", "pynvml", "pyamdgpuinfo",
    "proxy.admin.routes", "supervisor.store.web", "planners.placement",
    "planners.graph.architectures", "dateutil", "statistics", "difflib",
)  # fmt: skip


def printed(program: str) -> list[str]:
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def imported_at_the_first_answer(folder: Path) -> list[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    (folder / "config.toml").touch()
    argv = [
        *(sys.executable, "-c", DAEMON, str(port), "--config", str(folder / "config.toml")),
        *("--listen", f"127.0.0.1:{port}", "--admin-socket", str(folder / "admin.sock")),
        *("--state-dir", str(folder / "state"), "--model-dir", str(folder)),
    ]
    environ = {**os.environ, "INFERENCEOSD_RUNTIME_DIR": str(folder / "run")}
    ran = subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, env=environ
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_a_port_answers_before_its_daemon_imports_what_that_answer_does_not_need(
    short_folder: Path,
) -> None:
    modules = imported_at_the_first_answer(short_folder)

    assert "proxy.app" in modules
    assert [late for late in LATE if late in modules] == []


def test_no_source_is_compiled_at_a_start_for_what_could_be_a_struct() -> None:
    dataclasses = printed(
        "import sys\n"
        "import inferenceosd.daemon, inferenceosd.settings.config, proxy.admin.routes\n"
        "ours = ('inferenceosd', 'proxy', 'supervisor', 'planners')\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.partition('.')[0] in ours:\n"
        "        for found in vars(module).values():\n"
        "            if '__dataclass_fields__' in getattr(found, '__dict__', ()):\n"
        "                if found.__module__ == name and found.__bases__ == (object,):\n"
        "                    print(f'{name}.{found.__name__}')"
    )

    assert dataclasses == []


def test_a_library_kept_out_of_a_block_can_be_imported_after_it() -> None:
    told = printed(
        "import gc, importlib.util\n"
        "from inferenceosd.lean_imports import lean_imports, settle\n"
        "with lean_imports():\n"
        "    try:\n"
        "        import rich\n"
        "    except ImportError:\n"
        "        print('hidden')\n"
        "import rich\n"
        "print(rich.__name__, gc.isenabled())\n"
        "settle()\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 0)"
    )

    assert told == ["hidden", "rich", "True", "True", "True"]


def test_what_stands_in_for_a_part_of_a_library_makes_way_for_the_part_itself() -> None:
    told = printed(
        "from inferenceosd.lean_imports import lean_imports\n"
        "with lean_imports():\n"
        "    import sqlite_utils.utils\n"
        "print(hasattr(sqlite_utils.utils.recipes, 'parsedate'))\n"
        "import sqlite_utils.recipes\n"
        "print(sqlite_utils.recipes.parsedate('1 December 2026'))"
    )

    assert told == ["False", "2026-12-01"]


def test_memory_that_was_freed_goes_back_to_the_system() -> None:
    freed_kib, trimmed_kib = printed(
        "from inferenceosd.lean_imports import trim\n"
        "def rss_kib():\n"
        "    with open('/proc/self/statm') as file:\n"
        "        return int(file.read().split()[1]) * 4\n"
        "blocks = [bytes(65_536) for _ in range(640)]\n"
        "last = bytes(65_536)\n"  # above them all, so that only a trim can give them back
        "blocks.clear()\n"
        "print(rss_kib())\n"
        "trim()\n"
        "print(rss_kib())"
    )

    assert int(freed_kib) - int(trimmed_kib) > 20_000


def test_imports_that_failed_leave_the_search_for_garbage_on() -> None:
    told = printed(
        "import gc\n"
        "from inferenceosd.lean_imports import lean_imports\n"
        "try:\n"
        "    with lean_imports():\n"
        "        import inferenceosd.no_such_module\n"
        "except ImportError:\n"
        "    print(gc.isenabled())"
    )

    assert told == ["True"]


def test_help_and_status_are_told_without_what_plans_and_looks_at_the_machine() -> None:
    modules = printed("import sys\nimport inferenceosd.ctl\nprint(*sys.modules)")

    assert "inferenceosd.commands.report" in modules
    for late in ("planners.placement", "planners.layout.outlook", "supervisor.probe", "pynvml",
                 "readline", "planners.modelfile", "proxy.prompt.options",
                 "inferenceosd.commands.run_chat"):  # fmt: skip
        assert late not in modules
