"""inferenceosd.settings.environment: our variables by one rule, Ollama's by Ollama's."""

import math

import pytest

from inferenceosd.settings.environment import ollama_settings, own_settings, variable
from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.keys import KEYS
from inferenceosd.settings.kinds import Folders, Listen

FOLDERS = Folders(base="/srv", home="/home/ada")


def own(environ: dict[str, str]) -> dict[str, object]:
    settings = own_settings(environ, keys=KEYS, folders=FOLDERS)
    return {name: setting.value for name, setting in settings.items()}


def ollama(name: str, text: str) -> tuple[object, bool]:
    """What a variable sets, ... where it sets nothing, and whether it warned."""
    settings, warnings = ollama_settings({name: text}, FOLDERS)
    values = [setting.value for setting in settings.values()]
    assert len({str(value) for value in values}) <= 1
    return (values[0] if values else ..., bool(warnings))


def test_every_key_has_a_variable_of_its_own() -> None:
    names = [variable(key) for key in KEYS]

    assert len(set(names)) == len(names)
    assert "INFERENCEOSD_SERVER_LISTEN" in names
    assert "INFERENCEOSD_ADMIN_SOCKET" in names


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("INFERENCEOSD_SERVER_LISTEN", " [::1]:80 ", "server.listen", Listen("::1", 80)),
        ("INFERENCEOSD_MODELS_CONTEXT", "4096", "models.context", 4096),
        ("INFERENCEOSD_MODELS_CONTEXT", "auto", "models.context", None),
        ("INFERENCEOSD_MODELS_KEEP_ALIVE", "300", "models.keep_alive", 300.0),
        ("INFERENCEOSD_MODELS_KEEP_ALIVE", "-1", "models.keep_alive", math.inf),
        ("INFERENCEOSD_MODELS_DIRS", "a:~/b", "models.dirs", ("/srv/a", "/home/ada/b")),
        ("INFERENCEOSD_ENGINE_ORDER", "cuda, cpu", "engine.order", ("cuda", "cpu")),
        ("INFERENCEOSD_MEMORY_LIMIT", "8GiB", "memory.limit", 8 << 30),
    ],
)
def test_a_variable_is_read_as_its_key_is(name: str, text: str, key: str, value: object) -> None:
    assert own({name: text}) == {key: value}


def test_a_table_is_written_as_inline_toml() -> None:
    settings = own({"INFERENCEOSD_MODEL": '[{ name = "a", path = "/a.gguf" }]'})

    assert list(settings) == ["model"]


def test_an_empty_variable_is_as_if_unset() -> None:
    assert own({"INFERENCEOSD_SERVER_LISTEN": "", "INFERENCEOSD_LOG_LEVEL": "  "}) == {}


def test_a_misspelt_variable_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean INFERENCEOSD_SERVER_LISTEN"):
        own({"INFERENCEOSD_SERVER_LISTN": ":80"})


def test_what_kubernetes_sets_for_a_service_of_our_name_is_none_of_ours() -> None:
    links = {
        "INFERENCEOSD_PORT": "tcp://10.0.0.1:11434",
        "INFERENCEOSD_PORT_11434_TCP_ADDR": "10.0.0.1",
        "INFERENCEOSD_SERVICE_HOST": "10.0.0.1",
        "INFERENCEOSD_SERVICE_PORT_HTTP": "11434",
    }

    assert own(links) == {}


def test_the_key_that_inferenceosctl_sends_is_no_setting() -> None:
    assert own({"INFERENCEOSD_API_KEY": "ios-1-2"}) == {}


@pytest.mark.parametrize("text", ["[", "{ a b }", '[{ name = "" }]'])
def test_a_table_that_is_none_is_told_by_its_variable(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        own({"INFERENCEOSD_MODEL": text})

    assert caught.value.source == "INFERENCEOSD_MODEL"


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("0.0.0.0", Listen("0.0.0.0", 11434)),
        ("example.com", Listen("example.com", 11434)),
        ("example.com:8080", Listen("example.com", 8080)),
        (":8080", Listen("", 8080)),
        ("http://example.com", Listen("example.com", 80)),
        ("https://example.com", Listen("example.com", 443)),
        ("https://example.com:8443/ollama", Listen("example.com", 8443)),
        ("http://:81", Listen("", 81)),
        ("[::1]", Listen("::1", 11434)),
        ("[::1]:8080", Listen("::1", 8080)),
        ("::1", Listen("::1", 11434)),
        ("  'localhost:1' ", Listen("localhost", 1)),
        ("/api", Listen("127.0.0.1", 11434)),
        ("host:0", Listen("host", 0)),
    ],
)  # fmt: skip
def test_ollama_host_in_all_its_forms(text: str, listen: Listen) -> None:
    assert ollama("OLLAMA_HOST", text) == (listen, False)


@pytest.mark.parametrize("port", ["66000", "-1", "http", ""])
def test_a_bad_port_in_ollama_host_warns_and_takes_the_usual_one(port: str) -> None:
    assert ollama("OLLAMA_HOST", f"10.0.0.1:{port}") == (Listen("10.0.0.1", 11434), True)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("OLLAMA_MODELS", '"~/store"', ("/home/ada/store",)),
        ("OLLAMA_KEEP_ALIVE", "10m", 600.0),
        ("OLLAMA_KEEP_ALIVE", "300", 300.0),
        ("OLLAMA_KEEP_ALIVE", "-1", math.inf),
        ("OLLAMA_KEEP_ALIVE", "-5m", math.inf),
        ("OLLAMA_KEEP_ALIVE", "0", 0.0),
        ("OLLAMA_CONTEXT_LENGTH", "8192", 8192),
        ("OLLAMA_CONTEXT_LENGTH", "0", None),
        ("OLLAMA_NUM_PARALLEL", " '4' ", 4),
        ("OLLAMA_MAX_LOADED_MODELS", "0", None),
        ("OLLAMA_MAX_QUEUE", "0", 0),
        ("OLLAMA_KV_CACHE_TYPE", "Q8_0", "q8_0"),
        ("OLLAMA_GPU_OVERHEAD", "1073741824", 1 << 30),
        ("OLLAMA_ORIGINS", "https://a.example, *", ("https://a.example", "*")),
        ("OLLAMA_LOAD_TIMEOUT", "10m", 600.0),
    ],
)
def test_ollamas_other_variables(name: str, text: str, value: object) -> None:
    assert ollama(name, text) == (value, False)


@pytest.mark.parametrize("text", ["0", "-1", "-5m"])
def test_a_load_timeout_of_nothing_is_no_timeout(text: str) -> None:
    value, warned = ollama("OLLAMA_LOAD_TIMEOUT", text)

    assert isinstance(value, float)
    assert 300 * 24 * 3600 < value < math.inf
    assert not warned


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OLLAMA_KEEP_ALIVE", "soon"),
        ("OLLAMA_KEEP_ALIVE", "1.5"),
        ("OLLAMA_CONTEXT_LENGTH", "-1"),
        ("OLLAMA_CONTEXT_LENGTH", "8k"),
        ("OLLAMA_NUM_PARALLEL", "²"),
        ("OLLAMA_MAX_QUEUE", "99999999999999999999999"),
        ("OLLAMA_KV_CACHE_TYPE", "q9"),
        ("OLLAMA_GPU_OVERHEAD", "1GiB"),
    ],
)
def test_garbage_warns_and_leaves_the_default(name: str, text: str) -> None:
    assert ollama(name, text) == (..., True)
