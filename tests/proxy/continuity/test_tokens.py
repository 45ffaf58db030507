from pathlib import Path

import httpx
import pytest

from proxy.continuity.tokens import TOKENIZED, Piece, n_tokens, tokenize_body
from tests.fakes.real_child import real_child
from tests.fakes.real_engine import quickstart_model
from tests.fakes.tiny_models import tiny_models, write


@pytest.mark.parametrize(
    ("pieces", "text", "n"),
    [
        ([" the", " fox"], "the fox", 2),
        ([" ", "##", "##"], "####", 2),
        ([[0xE2], [0x96], [0x81], "#", "#"], "##", 2),
        ([" ", " fox"], " fox", 1),
        (["The", " fox"], "The fox", 2),
        (["<s>", "a"], "<s>a", 2),
        ([[0xF0, 0x9F], [0xA6, 0x8A]], "🦊", 2),
        ([""], "a", 1),
        ([], "", 0),
    ],
    ids=[
        "a space in the first token", "a space of its own", "a space in bytes", "two spaces",
        "no space", "a mark", "a broken character", "a token that shows nothing", "nothing",
    ],
)  # fmt: skip
def test_a_space_that_nobody_wrote_is_no_token(
    pieces: list[str | list[int]], text: str, n: int
) -> None:
    assert n_tokens([Piece(piece) for piece in pieces], text) == n


@pytest.mark.llama
@pytest.mark.parametrize("is_sentence_piece", [True, False], ids=["SentencePiece", "BPE"])
async def test_real_tokenizers_count_a_text_as_it_was_written(
    short_folder: Path, is_sentence_piece: bool
) -> None:
    (tiny,) = (model for model in tiny_models() if model.name == "dense")
    model = write(tiny, short_folder) if is_sentence_piece else quickstart_model()
    async with real_child(short_folder, model=model) as child:
        counted = {text: await _counted(child.client, text) for text in ("####", "a", " a", "")}

    assert counted == ({"####": 4, "a": 1, " a": 4, "": 0} if is_sentence_piece else COUNTED_BPE)


COUNTED_BPE = {"####": 1, "a": 1, " a": 1, "": 0}


async def _counted(client: httpx.AsyncClient, text: str) -> int:
    reply = await client.post("/tokenize", content=tokenize_body(text))
    return n_tokens(TOKENIZED.decode(reply.content).tokens, text)
