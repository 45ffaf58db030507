"""inferenceosd.settings.config: layers, places of mistakes, and the frozen value they make."""

import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferenceosd.platform_folders import Platform
from inferenceosd.settings.config import Backend, Config, Options, load_config, read_config
from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.kinds import Listen
from planners.instances.groups import Group
from planners.settings import DeviceRule, MemoryRule
from planners.waiting.line import Priority

LINUX = Platform(system="linux", is_root=False, home="/home/ada", cwd="/srv")
FILE = "/etc/inferenceosd/config.toml"


def load(
    text: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    options: Options | None = None,
    platform: Platform = LINUX,
) -> Config:
    return load_config(
        file=None if text is None else FILE,
        text=text,
        environ=environ or {},
        options=options or Options(),
        platform=platform,
    )


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value


def test_other_programs_folders_are_found_by_their_own_rules_unless_they_are_switched_off() -> None:
    environ = {"HF_HUB_CACHE": "/hub"}

    def folders(config: Config) -> list[str]:
        return [place.folder for place in config.places]

    assert "/hub" in folders(load(environ=environ))
    assert "/home/ada/.ollama/models" in folders(load())
    assert folders(load('[models]\nfind = ["HuggingFace"]', environ=environ)) == ["/hub"]
    assert folders(load("[models]\nfind = []")) == []
    assert folders(load(environ={"INFERENCEOSD_MODELS_FIND": "none"})) == []
    with pytest.raises(ConfigError, match=r"models\.find"):
        load('[models]\nfind = ["gpt4all"]')


def test_nothing_configured_serves_ollamas_address_from_the_users_folders() -> None:
    config = load(environ={"XDG_RUNTIME_DIR": "/run/user/1000"})

    assert config.listen == Listen("127.0.0.1", 11434)
    assert config.admin_socket == "/run/user/1000/inferenceosd/admin.sock"
    assert config.state_dir == "/home/ada/.local/state/inferenceosd"
    assert config.model_dirs == ("/home/ada/.local/state/inferenceosd/models",)
    assert config.model_defaults.keep_alive_s == 300.0
    assert config.warnings == ()


@pytest.mark.parametrize(
    ("text", "environ", "options", "port"),
    [
        ("", {}, Options(), 11434),
        ('[server]\nlisten = ":1"', {}, Options(), 1),
        ('[server]\nlisten = ":1"', {"OLLAMA_HOST": ":2"}, Options(), 2),
        ("", {"OLLAMA_HOST": ":2", "INFERENCEOSD_SERVER_LISTEN": ":3"}, Options(), 3),
        ("", {"INFERENCEOSD_SERVER_LISTEN": ":3"}, Options(listen=":4"), 4),
    ],
    ids=["default", "file", "ollama", "own variable", "option"],
)
def test_each_layer_overrides_the_one_below(
    text: str, environ: Mapping[str, str], options: Options, port: int
) -> None:
    config = load(text, environ=environ, options=options)

    assert config.listen.port == port


def test_every_section_reaches_the_value_it_configures() -> None:
    config = load("""
        [server]
        max_body = "1MiB"
        origins = ["https://chat.example"]
        [models]
        dirs = ["~/models", "here"]
        keep_alive = -1
        context = 8192
        parallel = 2
        cache_type_k = "q8_0"
        cpu_fallback = "deny"
        max_loaded = 3
        keep_conversations = false
        max_waiting = 7
        [memory]
        limit = "32GiB"
        reserve = "2GiB"
        device_reserve = "256MiB"
        [fleet]
        load_timeout = "10m"
        stop_timeout = 5
        restart_limit = 2
        [engine]
        order = ["vulkan", "cpu"]
        [rpc]
        servers = ["10.0.0.2:50052", "[fd00::2]:50052"]
        [devices."NVIDIA GeForce RTX 4090"]
        limit = "20GiB"
        use = true
        [backends.mine]
        path = "/opt/llama/llama-server"
        env = { GGML_VK_VISIBLE_DEVICES = "1" }
    """)

    assert config.max_body_bytes == 1 << 20
    assert config.origins == ("https://chat.example",)
    assert config.model_dirs == ("/home/ada/models", "/etc/inferenceosd/here")
    assert config.model_defaults.keep_alive_s == math.inf
    assert config.placement.context == 8192
    assert config.placement.parallel == 2
    assert (config.placement.type_k, config.placement.type_v) == ("q8_0", None)
    assert config.placement.memory == MemoryRule(32 << 30, 2 << 30)
    assert config.placement.device_reserve_bytes == 256 << 20
    assert config.placement.backends == ("vulkan", "cpu")
    assert not config.placement.allows_cpu_fallback
    assert config.placement.rpc_servers == ("10.0.0.2:50052", "[fd00::2]:50052")
    rule = DeviceRule("NVIDIA GeForce RTX 4090", 20 << 30, None, True)
    assert config.placement.devices == (rule,)
    assert (config.fleet.max_loaded, config.fleet.max_waiting) == (3, 7)
    assert not config.fleet.keeps_conversations
    assert (config.fleet.load_s, config.fleet.stop_s, config.fleet.restart_limit) == (600, 5, 2)
    env = (("GGML_VK_VISIBLE_DEVICES", "1"),)
    assert config.backends == (Backend("mine", "/opt/llama/llama-server", env),)


def test_a_model_keeps_what_it_says_and_takes_the_rest_from_models() -> None:
    config = load(
        """
        [models]
        keep_alive = "1h"
        [[model]]
        name = "qwen"
        path = "qwen.gguf"
        aliases = ["default"]
        context = 4096
        pin = true
        flags = ["--jinja"]
        mmproj = "eyes.gguf"
        lora = ["/a.gguf", "/b.gguf"]
        [[model]]
        path = "/models/Phi-4.Q4_K_M.gguf"
        keep_alive = 0
        """
    )

    qwen, phi = config.models
    assert (qwen.name, qwen.path, qwen.aliases) == (
        "qwen",
        "/etc/inferenceosd/qwen.gguf",
        ("default",),
    )
    assert (qwen.settings.context, qwen.settings.pin, qwen.settings.keep_alive_s) == (
        4096,
        True,
        3600.0,
    )
    assert qwen.settings.flags == ("--jinja",)
    assert qwen.settings.mmproj_path == "/etc/inferenceosd/eyes.gguf"
    assert qwen.settings.lora_paths == ("/a.gguf", "/b.gguf")
    assert (phi.name, phi.settings.keep_alive_s) == ("Phi-4.Q4_K_M", 0.0)


@pytest.mark.parametrize(
    ("text", "line", "key", "told"),
    [
        ('[server]\nlissen = ":1"', 2, "server.lissen", "did you mean listen?"),
        ('listen = ":1"', 1, "listen", "did you mean server.listen?"),
        ("[sever]\nlisten = 1", 1, "sever", "did you mean server?"),
        ("server = 1", 1, "server", "a value where a table belongs"),
        ('\n[server]\nlisten = "11434"', 3, "server.listen", "'11434' is no address"),
        ('[[model]]\nflags = ["-c", "1"]', 2, "model[1].flags[1]", "set context instead"),
        ('[[model]]\nflags = ["--port=1"]', 2, "model[1].flags[1]", "set server.listen instead"),
        ("[models]\nkeep_alive = true", 2, "models.keep_alive", "no duration"),
        ('[models]\nkeep_alive = "5 minutes"', 2, "models.keep_alive", "no duration"),
        ("[models]\ncontext = 0", 2, "models.context", "out of range"),
        ('[models]\ncontext = "8k"', 2, "models.context", "text where an integer belongs"),
        ("[models]\ncontext = 2.5", 2, "models.context", "a float where an integer belongs"),
        ('[models]\ndirs = [\n"/a",\n3]', 4, "models.dirs[2]", "an integer where text belongs"),
        ('[memory]\nlimit = "6 GiBi"', 2, "memory.limit", "'6 GiBi' is no size"),
        ("[memory]\nreserve = -1", 2, "memory.reserve", "out of range"),
        ("[fleet]\nstop_timeout = 11", 2, "fleet.stop_timeout", "out of range"),
        ('[log]\nlevel = "loud"', 2, "log.level", "none of them"),
        ('[devices."RTX 4090"]\nlimt = 1', 2, 'devices."RTX 4090".limt', "did you mean limit?"),
        ('[backends.mine]\nenv = { A = "1" }', 1, "backends.mine", "no path"),
        ('[backends.x]\npath = "/x"\nenv = { "A B" = "1" }', 3, 'backends.x.env."A B"', "no name"),
        ('[[model]]\nname = "a"\n[[model]]\npin = true', 3, "model[2]", "neither name nor path"),
        ("model = 1", 1, "model", "no array of tables"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_key_and_what_is_allowed(
    text: str, line: int, key: str, told: str
) -> None:
    error = refused(text)

    assert (error.source, error.line, error.key) == (FILE, line, key)
    assert told in error.problem
    assert error.allowed
    assert str(error).startswith(f"{FILE}:{line}: {key}: ")


def test_a_name_claimed_twice_is_told_with_both_lines() -> None:
    error = refused(
        '[[model]]\nname = "Qwen"\n\n[[model]]\nname = "other"\naliases = ["x", "qwen:latest"]\n'
    )

    assert (error.line, error.key) == (6, "model[2].aliases")
    assert "line 2" in error.problem


def test_a_caller_has_a_priority_by_its_name_or_network() -> None:
    config = load("""
        [[caller]]
        name = "10.0.0.0/8"
        priority = "low"
        [[caller]]
        name = "desk"
        priority = "high"
    """)

    priority = config.fleet.callers.priority
    assert [priority(who) for who in ("10.1.2.3", "desk", "127.0.0.1")] == [
        Priority.LOW,
        Priority.HIGH,
        Priority.NORMAL,
    ]


@pytest.mark.parametrize(
    ("table", "key", "line"),
    [
        ('priority = "low"', "caller[1]", 1),
        ('name = "10.0.0.0/33"', "caller[1].name", 2),
        ('name = "::1"\n[[caller]]\nname = "0:0::1"', "caller[2].name", 4),
        ('name = "a"\npriority = "urgent"', "caller[1].priority", 3),
    ],
    ids=["no name", "no network", "twice", "no priority"],
)
def test_a_caller_without_sense_is_told_with_its_line(table: str, key: str, line: int) -> None:
    error = refused(f"[[caller]]\n{table}\n")

    assert (error.key, error.line) == (key, line)


def test_a_group_says_which_models_may_not_run_at_once() -> None:
    config = load('[[group]]\nname = "big"\nmodels = ["a", "b"]\nalone = true\n')

    assert config.fleet.groups == (Group("big", ("a", "b"), exclusive=True, alone=True),)


@pytest.mark.parametrize(
    ("table", "key", "line"),
    [
        ('models = ["a", "b"]', "group[1]", 1),
        ('name = "g"\nmodels = ["a"]', "group[1].models", 3),
        ('name = "g"\nmodels = ["a", "b", "A:latest"]', "group[1].models[3]", 3),
        ('name = "g"\nmodels = ["a", "b"]\nexclusive = false', "group[1]", 1),
        (
            'name = "g"\nmodels = ["a", "b"]\n[[group]]\nname = "G"\nmodels = ["c", "d"]',
            "group[2].name",
            5,
        ),
    ],
    ids=["no name", "one member", "a member twice", "no rule", "a name twice"],
)
def test_a_group_without_sense_is_told_with_its_line(table: str, key: str, line: int) -> None:
    error = refused(f"[[group]]\n{table}\n")

    assert (error.key, error.line) == (key, line)


_PINNED = (
    '[[model]]\nname = "a"\naliases = ["first"]\npin = true\n[[model]]\nname = "b"\npin = true\n'
)


@pytest.mark.parametrize(
    "group",
    ['models = ["First", "b:latest"]', 'models = ["a", "c"]\nexclusive = false\nalone = true'],
    ids=["one at a time", "alone"],
)
def test_two_pinned_models_that_a_group_keeps_apart_are_told_by_name(group: str) -> None:
    error = refused(f'{_PINNED}[[group]]\nname = "g"\n{group}\n')

    assert (error.key, error.line) == ("group[1]", 8)
    assert "'a' and 'b' are pinned" in error.problem


def test_a_group_may_have_one_pinned_member() -> None:
    config = load(f'{_PINNED}[[group]]\nname = "g"\nmodels = ["a", "c"]\n')

    assert [rule.settings.pin for rule in config.models] == [True, True]


def test_a_model_may_repeat_its_own_name_as_an_alias() -> None:
    config = load('[[model]]\nname = "qwen"\naliases = ["qwen:latest"]')

    assert [rule.name for rule in config.models] == ["qwen"]


@pytest.mark.parametrize(
    ("text", "line", "column", "key"),
    [
        ("[server]\nlisten = \n", 2, 10, "server.listen"),
        ('[[model]]\nname = "a"\npin = yes\n', 3, 7, "model[1].pin"),
        ('[[model]]\nname = "a"\npin yes\n', 3, 5, "model[1].pin"),
        ('[models]\ndirs = ["a"', 2, None, "models.dirs"),
        ('[models]\ndirs = [\n  "a",\n  b,\n]', 4, 3, "models.dirs"),
        ('[models]\ndirs = ["a', 2, None, "models.dirs[1]"),
        ('[models]\ndirs = "a\nb = 1', 2, 10, "models.dirs"),
        ("a = 1\na = 2\n", 2, 6, "a"),
        ("[models]\nmax_loaded = 1\n= 2\n", 3, 1, None),
    ],
    ids=[
        "no value", "no boolean", "no equals", "never closed", "no string", "neither closed",
        "no end of a string", "twice", "no key",
    ],
)  # fmt: skip
def test_what_is_no_toml_is_told_with_the_parsers_place_and_the_key_it_lies_in(
    text: str, line: int, column: int | None, key: str | None
) -> None:
    error = refused(text)

    assert (error.line, error.column, error.key) == (line, column, key)
    assert error.problem.startswith("not TOML: ")


_WORDS = st.sampled_from(
    ["[server]", "[[model]]", "[devices.", '"a b"', "]", "listen", "name", "=", "{", "}", "[", ",",
     "'x'", '"""', "\n", "0x", "9" * 30, "1979-05-27", "#", ".", "\\u", "inf", "true", "aliases"]
)  # fmt: skip


@given(text=st.one_of(st.text(), st.lists(_WORDS, max_size=40).map(" ".join)))
@example(text="x = " + "[" * 100_000)
@example(text="[models]\ncontext = 0x" + "f" * 5000)
@example(text="[models]\ncontext = " + "9" * 5000)
@example(text="[models]\nkeep_alive = 1e308")
@example(text="[models]\nkeep_alive = nan")
@example(text='[devices."\\u0000"]\n')
@example(text='[[model]]\nname = "\\uD7FF\\n"')
def test_arbitrary_text_is_a_configuration_or_a_config_error(text: str) -> None:
    try:
        outcome: Config | ConfigError = load(text)
    except ConfigError as exc:
        outcome = exc

    assert isinstance(outcome, Config) or outcome.source == FILE
    assert isinstance(outcome, Config) or "\n" not in str(outcome)


def test_a_wrong_option_is_told_by_its_name() -> None:
    with pytest.raises(ConfigError) as caught:
        load(options=Options(listen="nowhere"))

    assert caught.value.source == "--listen"
    assert str(caught.value).startswith("--listen: ")


def test_relative_paths_on_the_command_line_start_where_one_stands() -> None:
    config = load(options=Options(state_dir="state", model_dirs=("models", "~/more")))

    assert config.state_dir == "/srv/state"
    assert config.model_dirs == ("/srv/models", "/home/ada/more")


def test_a_socket_path_that_no_kernel_takes_names_the_setting_and_the_limit() -> None:
    text = f'[admin]\nsocket = "/{"s" * 107}"'

    error = refused(text)

    assert (error.line, error.key) == (2, "admin.socket")
    assert "108 bytes long" in error.problem
    assert "107 bytes" in (error.allowed or "")


def test_a_runtime_folder_must_leave_room_for_the_names_of_sockets() -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={"XDG_RUNTIME_DIR": "/" + "r" * 80})

    assert caught.value.key == "runtime.dir"


def test_gpu_overhead_adds_to_what_stays_free_on_devices() -> None:
    config = load(environ={"OLLAMA_GPU_OVERHEAD": str(1 << 20)})

    assert config.placement.device_reserve_bytes == (1 << 30) + (1 << 20)


def test_a_file_is_found_in_the_users_folder_and_read(tmp_path: Path) -> None:
    file = tmp_path / "inferenceosd" / "config.toml"
    file.parent.mkdir()
    file.write_text('[models]\ndirs = ["gguf"]')
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}

    config = read_config(Options(), environ=environ, platform=LINUX)

    assert config.file == str(file)
    assert config.model_dirs == (str(file.parent / "gguf"),)


def test_a_file_in_roots_home_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    root = Platform(system="linux", is_root=True, home=str(tmp_path), cwd="/")
    mine = tmp_path / ".config/inferenceosd/config.toml"
    read = tmp_path / "etc/config.toml"
    for file in (mine, read):
        file.parent.mkdir(parents=True)
        file.touch()
    environ = {"CONFIGURATION_DIRECTORY": str(read.parent)}

    passed_over = read_config(Options(), environ=environ, platform=root)
    told = read_config(Options(config=str(mine)), environ=environ, platform=root)
    mine.unlink()
    gone = read_config(Options(), environ=environ, platform=root)

    assert passed_over.warnings == (f"{mine} is not read: root's daemon reads {read}",)
    assert (told.warnings, gone.warnings) == ((), ())


def test_a_file_that_was_asked_for_and_is_missing_is_an_error(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")

    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config(Options(config=missing), environ={}, platform=LINUX)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_config(Options(), environ={"INFERENCEOSD_CONFIG": missing}, platform=LINUX)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"#" * ((1 << 20) + 1), "longer than"), (b"a = 1\n\xff", ":2: not UTF-8")],
    ids=["a megabyte", "latin-1"],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: bytes, told: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=told):
        read_config(Options(config=str(file)), environ={}, platform=LINUX)


@pytest.mark.timeout(10)
def test_a_named_pipe_in_place_of_the_file_hangs_nobody(tmp_path: Path) -> None:
    pipe = tmp_path / "config.toml"
    os.mkfifo(pipe)

    with pytest.raises(ConfigError, match="not a file"):
        read_config(Options(config=str(pipe)), environ={}, platform=LINUX)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
