import pytest
from msgspec.structs import replace

from inferenceosd.platform_folders import this_platform
from inferenceosd.settings.changes import changed_settings, concerned_models, needs_restart
from inferenceosd.settings.config import Config, LogSettings, Options, load_config
from inferenceosd.settings.kinds import Listen
from planners.model import ModelId
from planners.settings import FleetSettings
from planners.view import Observed
from tests.fakes.admin_service import READY


def config(text: str = "") -> Config:
    return load_config(
        file="/etc/x.toml",
        text=text,
        environ={"XDG_RUNTIME_DIR": "/run/user/1"},
        options=Options(),
        platform=this_platform(),
    )


def test_nothing_changed_is_nothing_to_say() -> None:
    assert changed_settings(config(), config()) == ()
    assert needs_restart(config(), config()) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("[models]\nkeep_alive = 1", ("[models] changed",), id="a default"),
        pytest.param("[[model]]\nname = 'a'", ("model a added",), id="a model"),
        pytest.param(
            "[[group]]\nname = 'g'\nmodels = ['a', 'b']", ("[[group]] changed",), id="a group"
        ),
        pytest.param(
            "[models]\ncontext_policy = 'fixed'",
            ("models.context_policy changed",),
            id="the policy",
        ),
        pytest.param("[fleet]\nturn = 1\nstop_timeout = 1", ("[fleet] changed",), id="times"),
        pytest.param(
            "[rpc]\nservers = ['127.0.0.1:50052']",
            ("[devices], [memory], [models], [rpc] or [engine] changed",),
            id="servers",
        ),
        pytest.param(
            "[server]\norigins = ['https://a']", ("server.origins changed",), id="origins"
        ),
    ],
)
def test_each_change_is_a_sentence(text: str, said: tuple[str, ...]) -> None:
    assert changed_settings(config(), config(text)) == said


def test_models_that_went_or_changed_are_named() -> None:
    before = config("[[model]]\nname = 'a'\n[[model]]\nname = 'b'")
    after = config("[[model]]\nname = 'b'\npin = true")

    assert changed_settings(before, after) == ("model b changed", "model a removed")


def test_what_only_a_new_daemon_takes_up_is_told_apart() -> None:
    after = replace(config(), listen=Listen("127.0.0.1", 1), log=LogSettings("json", "debug"))

    assert needs_restart(config(), after) == ("server.listen",)
    assert changed_settings(config(), after) == ("[log] changed",)


NO_SETTINGS = ("file", "beside_file", "warnings")
"""What a configuration tells of where it is from."""


@pytest.mark.parametrize(
    "field",
    [n for n in Config.__struct_fields__ if n not in (*NO_SETTINGS, "models", "fleet")],
)
def test_no_setting_changes_without_a_word(field: str) -> None:
    after = replace(config(), **{field: object()})

    assert changed_settings(config(), after) or needs_restart(config(), after)


@pytest.mark.parametrize("field", FleetSettings.__struct_fields__)
def test_nothing_of_the_fleet_changes_without_a_word(field: str) -> None:
    fleet = replace(config().fleet, **{field: object()})

    assert changed_settings(config(), replace(config(), fleet=fleet))


@pytest.mark.parametrize(
    ("seen", "launch_keys", "said"),
    [
        (READY, {"qwen": "k"}, ()),
        (
            READY,
            {"qwen": "other"},
            ("qwen moves to a launch as it is wanted now; its streams go on",),
        ),
        (
            replace(READY, idle_since_s=1.0, waiting=0, expires_at=2.0),
            {"qwen": "other"},
            ("qwen is stopped, and starts anew: at once if pinned, else on its next request",),
        ),
        (READY, {"phi": "k"}, ("qwen is drained, then is gone",)),
    ],
    ids=["as before", "other settings", "other settings of an idle one", "no longer offered"],
)
def test_what_becomes_of_a_running_model_is_told(
    seen: Observed, launch_keys: dict[ModelId, str], said: tuple[str, ...]
) -> None:
    assert concerned_models((seen,), launch_keys) == said
