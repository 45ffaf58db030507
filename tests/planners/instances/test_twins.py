from math import inf

from msgspec.structs import replace

from planners.instances.twins import shared
from planners.model import ModelId
from tests.fakes.machines import served

ONE = replace(served(), model_id=ModelId("one"), aliases=("first",))
TWO = replace(served(), model_id=ModelId("two"), aliases=("second",))


def test_two_names_for_one_launch_run_as_one_model() -> None:
    models = shared({TWO.model_id: TWO, ONE.model_id: ONE})

    assert list(models.models) == ["one"]
    assert models.models[ONE.model_id].aliases == ("first", "two", "second")
    assert models.host(TWO.model_id) == models.host(ONE.model_id) == "one"


def test_names_that_differ_in_a_flag_or_in_the_file_do_not() -> None:
    flags = replace(TWO, settings=replace(TWO.settings, context=4096))
    other = replace(TWO, file_key="2")

    assert set(shared({ONE.model_id: ONE, TWO.model_id: flags}).models) == {"one", "two"}
    assert set(shared({ONE.model_id: ONE, TWO.model_id: other}).models) == {"one", "two"}


def test_a_pin_or_a_longer_keep_alive_of_one_name_holds_for_all() -> None:
    kept = replace(TWO, settings=replace(TWO.settings, pin=True, keep_alive_s=inf))

    settings = shared({ONE.model_id: ONE, TWO.model_id: kept}).models[ONE.model_id].settings

    assert settings.pin
    assert settings.keep_alive_s == inf
