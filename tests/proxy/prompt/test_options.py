import math

import pytest

from proxy.errors import BadOption
from proxy.prompt.options import read_options


def test_without_options_ollamas_defaults_are_sent() -> None:
    assert dict(read_options({}).sampling) == {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_last_n": 64,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 0xFFFFFFFF,
        "n_keep": 4,
        "n_predict": -1,
    }


@pytest.mark.parametrize(
    ("name", "told", "sent"),
    [
        ("temperature", 0, ("temperature", 0.0)),
        ("top_k", 20.9, ("top_k", 20)),
        ("seed", 42, ("seed", 42)),
        ("seed", 2**32 + 1, ("seed", 1)),
        ("repeat_last_n", 2**40, ("repeat_last_n", 2**20)),
        ("num_predict", -2, ("n_predict", -1)),
        ("num_predict", 7, ("n_predict", 7)),
        ("num_predict", None, ("n_predict", -1)),
        ("stop", ["a", "b"], ("stop", ["a", "b"])),
    ],
)
def test_an_option_is_sent_under_the_childs_name(
    name: str, told: object, sent: tuple[str, object]
) -> None:
    assert sent in read_options({name: told}).sampling


def test_launch_options_and_unknown_ones_do_not_reach_the_child() -> None:
    told = {"num_ctx": 128, "num_gpu": 1, "use_mmap": True, "mirostat": 2, "numa": [1], "x": {}}

    options = read_options(told)

    assert options.n_ctx == 128
    assert options.sampling == read_options({}).sampling


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"temperature": "0.5"}, 'option "temperature" must be of type float32'),
        ({"num_ctx": "big"}, 'option "num_ctx" must be of type integer'),
        ({"top_k": True}, 'option "top_k" must be of type integer'),
        ({"top_k": math.inf}, 'option "top_k" must be of type integer'),
        ({"temperature": 10**400}, 'option "temperature" must be of type float32'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of an array of strings'),
    ],
)
def test_an_option_of_another_type_is_refused_in_ollamas_words(
    told: dict[str, object], says: str
) -> None:
    with pytest.raises(BadOption) as refused:
        read_options(told)

    assert str(refused.value) == says
