"""inferenceosd.settings.file: TOML to settings that know their lines."""

import pytest

from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.file import Key, Setting, Values, any_keys, dotted, file_settings
from inferenceosd.settings.kinds import TEXT, Folders, KeyPath, integer

NAME = Key("house.name", TEXT, "home", "What it is called.")
ROOMS = Key("house.rooms", integer(1, 9), 3, "How many.")
KEYS = any_keys(NAME, ROOMS)


def settings(text: str) -> dict[str, Setting]:
    return file_settings(text, file="f.toml", keys=KEYS, folders=Folders("/", "/home"))


def test_a_setting_knows_its_file_and_line() -> None:
    assert settings('[house]\n\nname = "x"') == {"house.name": Setting("x", "f.toml", 3)}


def test_dotted_keys_mean_the_same_as_sections() -> None:
    assert settings("house.rooms = 4") == {"house.rooms": Setting(4, "f.toml", 1)}


def test_an_empty_section_sets_nothing() -> None:
    assert settings("[house]") == {}


def test_an_unknown_key_lists_what_is_known_beside_it() -> None:
    with pytest.raises(ConfigError) as caught:
        settings("[house]\ncellar = 1")

    assert caught.value.allowed == "name, rooms"
    assert "did you mean" not in caught.value.problem


def test_values_fall_back_on_the_default_of_their_key() -> None:
    values = Values({"house.rooms": 5})

    assert (values.get(NAME), values.get(ROOMS)) == ("home", 5)
    assert (values.has(NAME), values.has(ROOMS)) == (False, True)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("server", "listen"), "server.listen"),
        (("devices", "RTX 4090", "limit"), 'devices."RTX 4090".limit'),
        (("model", 1, "aliases", 0), "model[2].aliases[1]"),
        (("a\nb",), '"a\\nb"'),
        (("",), '""'),
    ],
)
def test_a_path_is_shown_as_one_would_write_it(path: KeyPath, shown: str) -> None:
    assert dotted(path) == shown
