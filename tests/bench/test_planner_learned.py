"""Models of architectures that no recipe knows: what the engine's complaints make of a draft."""

import json
from pathlib import Path
from random import Random

import pytest

from bench.planner.__main__ import STRANGERS
from bench.planner.drafts import Draft, described, write_draft
from bench.planner.engine import live_engine
from bench.planner.learned import Hunch, NotLearned, learned, mended
from bench.planner.rows import Row, read_rows, rebuilt
from bench.planner.scores import all_errors, percentile
from bench.planner.strangers import stranger
from planners.gguf import parse_model

DRAFT = Draft("m", "grault", {"block_count": 3, "taps": [1, 2]}, 300, {})
DEFAULTS = {"epsilon": 1e-5}


def heeded(hunch: Hunch, *said: str) -> Hunch:
    for line in said:
        better = mended(hunch, [line], defaults=DEFAULTS)
        assert better is not None, line
        hunch = better
    return hunch


def test_a_missing_key_gets_its_default() -> None:
    found = heeded(Hunch(DRAFT), "error: key not found in model: grault.epsilon")

    assert found.draft.numbers["epsilon"] == 1e-5


def test_a_missing_tensor_is_added_to_all_later_blocks_in_the_shape_that_is_asked_for() -> None:
    found = heeded(
        Hunch(DRAFT),
        "check_tensor_dims: tensor 'blk.1.attn_q.weight' not found",
        "tensor 'blk.1.attn_q.weight' has wrong shape; expected   64,   32, got      1,      1",
    )

    assert found.draft.shapes == {f"blk.{i}.attn_q.weight": (64, 32) for i in (1, 2)}


def test_blocks_that_are_not_alike_are_asked_for_one_by_one() -> None:
    found = heeded(
        Hunch(DRAFT),
        "tensor 'blk.0.ssm_in.weight' not found",
        "tensor 'blk.0.ssm_in.weight' has wrong shape; expected   64,   1, got 1",
        "done_getting_tensors: wrong number of tensors; expected 9, got 11",
        "tensor 'blk.2.ssm_in.weight' not found",
    )

    assert found.draft.shapes == {"blk.0.ssm_in.weight": (64,), "blk.2.ssm_in.weight": (64,)}


def test_an_array_is_made_as_long_as_it_must_be() -> None:
    found = heeded(Hunch(DRAFT), "key grault.taps has wrong array length; expected 3, got 2")

    assert found.draft.numbers["taps"] == [1, 2, 1]


@pytest.mark.parametrize(
    "said",
    ["key not found in model: grault.unheard_of", "GGML_ASSERT(n_group == 0) failed", "a word"],
)
def test_what_cannot_be_mended_is_told(said: str) -> None:
    with pytest.raises(NotLearned, match=said.split("(")[0]):
        learned(DRAFT, lambda draft: [said], defaults=DEFAULTS)


def test_a_described_draft_is_rebuilt_as_its_file_is_read(tmp_path: Path) -> None:
    numbers = {"block_count": 2, "embedding_length": 64, "attention.head_count": 2,
               "context_length": 512, "feed_forward_length": 64}  # fmt: skip
    shapes = {"token_embd.weight": (64, 300), "blk.0.attn_q.weight": (64, 64),
              "blk.1.attn_q.weight": (64, 64), "blk.1.odd.weight": (64, 32)}  # fmt: skip
    draft = Draft("m", "grault", numbers, 300, shapes)

    path = write_draft(draft, tmp_path)
    file = parse_model(path.read_bytes(), file_bytes=path.stat().st_size)
    row = rebuilt(json.loads(json.dumps(described(draft))))

    assert row.layers == file.layers
    assert (row.ends, row.input_bytes) == (file.ends, file.input_bytes)


@pytest.mark.llama
def test_an_architecture_without_a_recipe_is_learned_from_the_engine(tmp_path: Path) -> None:
    draft = stranger("falcon", Random(4), engine=live_engine(), folder=tmp_path)

    width, n_ff = draft.numbers["embedding_length"], draft.numbers["feed_forward_length"]
    assert draft.shapes["blk.0.attn_norm.bias"] == (width,)
    assert draft.shapes[f"blk.{draft.n_layer - 1}.ffn_up.weight"] == (width, n_ff)


def test_upper_bounds_hold_for_architectures_that_nobody_drew() -> None:
    rows = [row for row in read_rows(STRANGERS.read_text().splitlines()) if isinstance(row, Row)]

    found = [error for row in rows for error in all_errors(row)]

    assert len({row.model.architecture for row in rows}) >= 40
    assert [f"{e.row.name} {e.device}" for e in found if e.is_above_bound] == []
    assert [f"{e.row.name} {e.device}" for e in found if not e.are_parts_exact] == []


def test_architectures_that_are_like_others_are_predicted_as_they_are() -> None:
    alike = ("chatglm", "deci", "orion", "plamo", "xverse", "qwen", "minicpm3")
    rows = [row for row in read_rows(STRANGERS.read_text().splitlines()) if isinstance(row, Row)]

    found = [error for row in rows if row.model.architecture in alike for error in all_errors(row)]

    shares = sorted(abs(error.share) for error in found)
    assert len(shares) >= 50
    assert percentile(shares, 0.95) < 0.01
