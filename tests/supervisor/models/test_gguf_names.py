import pytest

from supervisor.models.gguf_names import Part, part_name, part_of, stem_of


@pytest.mark.parametrize(
    ("path", "stem"),
    [
        ("a/tiny.gguf", "a/tiny"),
        ("tiny.GGUF", "tiny"),
        ("tiny.gguf.part", "tiny.gguf.part"),
        ("tiny", "tiny"),
    ],
)
def test_a_stem_is_the_path_without_its_suffix(path: str, stem: str) -> None:
    assert stem_of(path) == stem


@pytest.mark.parametrize(
    ("stem", "part"),
    [
        ("tiny-00002-of-00003", Part("tiny", 2, 3)),
        ("a/b-00001-of-00002-00001-of-00001", Part("a/b-00001-of-00002", 1, 1)),
        ("tiny", None),
        ("tiny-2-of-3", None),
        ("-00001-of-00002", None),
        ("tiny-00000-of-00000", None),
        ("tiny-00003-of-00002", None),
    ],
)
def test_a_part_says_which_it_is_of_how_many(stem: str, part: Part | None) -> None:
    assert part_of(stem) == part


def test_a_part_is_found_again_by_the_name_that_it_is_given() -> None:
    assert part_of(stem_of(part_name("tiny", 12, 345))) == Part("tiny", 12, 345)
