"""inferenceosd.lean_imports: what a start leaves out, in processes of their own."""

import subprocess
import sys


def printed(program: str) -> list[str]:
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def test_a_daemon_starts_without_what_its_first_answer_does_not_need() -> None:
    modules = printed(
        "import sys\n"
        "from inferenceosd.lean_imports import lean_imports\n"
        "with lean_imports():\n"
        "    import inferenceosd.daemon\n"
        "print(*sys.modules)"
    )

    assert "proxy.app" in modules
    for late in ("rich", "pygments", "planners.placement", "planners.graph.architectures",
                 "prometheus_client", "starlette", "opentelemetry", "pynvml", "pyamdgpuinfo",
                 "dateutil", "statistics", "difflib"):  # fmt: skip
        assert late not in modules


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
                 "readline", "planners.modelfile", "proxy.ollama.options",
                 "inferenceosd.commands.run_chat"):  # fmt: skip
        assert late not in modules
