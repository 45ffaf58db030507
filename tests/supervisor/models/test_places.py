"""supervisor.models.places: where other programs keep models, by their own rules."""

import pytest

from supervisor.models.places import Program, places_of

OLLAMA, HUB, CPP = Program.OLLAMA, Program.HUGGING_FACE, Program.LLAMA_CPP


@pytest.mark.parametrize(
    ("program", "environ", "folders"),
    [
        (OLLAMA, {}, ["/home/ada/.ollama/models", "/usr/share/ollama/.ollama/models"]),
        (OLLAMA, {"OLLAMA_MODELS": "~/o"}, ["/home/ada/o"]),
        (HUB, {}, ["/home/ada/.cache/huggingface/hub"]),
        (HUB, {"XDG_CACHE_HOME": "/c"}, ["/c/huggingface/hub"]),
        (HUB, {"HF_HOME": "/h", "XDG_CACHE_HOME": "/c"}, ["/h/hub"]),
        (HUB, {"HF_HUB_CACHE": "/hub/", "HF_HOME": "/h"}, ["/hub"]),
        (HUB, {"HF_HUB_CACHE": "relative"}, []),
        (CPP, {}, ["/home/ada/.cache/llama.cpp"]),
        (CPP, {"LLAMA_CACHE": "/l"}, ["/l"]),
        (Program.LM_STUDIO, {},
         ["/home/ada/.lmstudio/models", "/home/ada/.cache/lm-studio/models"]),
    ],
)  # fmt: skip
def test_a_program_is_looked_for_where_it_would_look_itself(
    program: Program, environ: dict[str, str], folders: list[str]
) -> None:
    found = places_of(program, environ, home="/home/ada", system="linux")

    assert [place.folder for place in found] == folders
    assert {place.program for place in found} <= {program}


def test_a_mac_has_its_own_caches_and_no_service_of_ollamas() -> None:
    def folders(program: Program) -> list[str]:
        found = places_of(program, {}, home="/Users/ada", system="darwin")
        return [place.folder for place in found]

    assert folders(OLLAMA) == ["/Users/ada/.ollama/models"]
    assert folders(CPP) == ["/Users/ada/Library/Caches/llama.cpp"]
