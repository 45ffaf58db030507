"""inferenceosd.settings.keys: defaults are values that could have been written."""

import tomllib

import pytest

from inferenceosd.settings import keys as config_keys
from inferenceosd.settings import table_keys
from inferenceosd.settings.file import AnyKey, Key
from inferenceosd.settings.keys import KEYS
from inferenceosd.settings.kinds import Folders

SECTIONS = [key for key in KEYS if "." in key.name]
INSIDE = [*table_keys.DEVICE_KEYS, *table_keys.BACKEND_KEYS, *table_keys.MODEL_KEYS]
FOLDERS = Folders(base="/", home="/home/ada")


@pytest.mark.parametrize("key", SECTIONS, ids=lambda key: key.name)
def test_a_default_can_be_written_as_shown_and_is_read_back(key: AnyKey) -> None:
    if key.kind.show(key.default) == "not set":
        assert key.default is None
        return

    written = tomllib.loads(f"value = {key.kind.show(key.default)}")["value"]

    assert key.kind.read(written, FOLDERS) == key.default


@pytest.mark.parametrize("key", [*SECTIONS, *INSIDE], ids=lambda key: key.name)
def test_a_key_says_what_it_means_and_where_its_default_comes_from(key: AnyKey) -> None:
    assert key.meaning.endswith(".")
    assert key.why
    assert key.kind.allowed


def test_every_key_that_is_defined_can_be_set() -> None:
    defined = {value.name for value in vars(config_keys).values() if isinstance(value, Key)}

    assert defined == {key.name for key in KEYS}
