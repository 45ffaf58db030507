"""proxy.ollama.modelfile: a model's settings as /api/show writes them."""

from msgspec.structs import replace

from planners.recipe import Message, Recipe
from proxy.ollama.modelfile import modelfile, parameters
from tests.fakes.fleet_of_one import served_model

RECIPE = Recipe(
    parameters=(("stop", ("<|im_end|>", 'a"b')), ("temperature", 0.7), ("num_ctx", 64)),
    system="Be brief.",
    template="{{ .Prompt }}",
    messages=(Message("user", "hi"),),
    licenses=("MIT",),
)
MODEL = replace(served_model(path="/blobs/sha256-ab"), recipe=RECIPE)


def test_parameters_are_lines_that_clients_read() -> None:
    assert parameters(MODEL).splitlines() == [
        'stop                           "<|im_end|>"',
        'stop                           "a\\"b"',
        "temperature                    0.7",
    ]


def test_the_context_is_the_one_in_force() -> None:
    model = replace(MODEL, settings=replace(MODEL.settings, context=32))

    assert parameters(model).startswith("num_ctx                        32\n")


def test_a_modelfile_says_all_that_made_the_model() -> None:
    assert modelfile(MODEL, "tiny").splitlines()[2:] == [
        "# FROM tiny:latest",
        "",
        "FROM /blobs/sha256-ab",
        'TEMPLATE """{{ .Prompt }}"""',
        'SYSTEM """Be brief."""',
        'PARAMETER stop "<|im_end|>"',
        'PARAMETER stop "a\\"b"',
        "PARAMETER temperature 0.7",
        'MESSAGE user """hi"""',
        'LICENSE """MIT"""',
    ]
