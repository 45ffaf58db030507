import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.engines.builds import (
    Build,
    BuildInUse,
    Builds,
    BuildsUnwritable,
    Choice,
    NoSuchBuild,
)

Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Lays a build down; later ones are newer."""
    number = 0

    def made(build_id: str, *, backend: str = "cpu", manifest: str = "") -> None:
        nonlocal number
        number += 1
        binary = tmp_path / backend / build_id / "bin" / "llama-server"
        binary.parent.mkdir(parents=True)
        binary.touch()
        os.utime(binary, (number, number))
        if manifest:
            (tmp_path / backend / build_id / "manifest.json").write_text(manifest)

    return made


def ids(builds: Builds) -> list[list[str]]:
    return [[build.build_id for build in kind] for kind in builds.candidates()]


def test_the_current_build_goes_first_then_the_proven_one_then_the_newest(
    tmp_path: Path, make: Make
) -> None:
    builds = Builds(tmp_path)
    for name in ("chosen", "proved", "old", "new"):
        make(name)
    builds.choose(builds.named("chosen"), Choice.CURRENT)
    builds.choose(builds.named("proved"), Choice.PROVEN)

    assert ids(builds) == [["chosen", "proved", "new", "old"]]


def test_a_pinned_build_is_the_only_candidate_of_its_backend(tmp_path: Path, make: Make) -> None:
    builds = Builds(tmp_path)
    make("held")
    make("newer")
    make("other", backend="vulkan")
    builds.choose(builds.named("newer"), Choice.CURRENT)
    builds.choose(builds.named("held"), Choice.PINNED)

    assert ids(builds) == [["held"], ["other"]]
    for _ in range(2):  # the second time there is none
        builds.drop("cpu", Choice.PINNED)
        assert ids(builds) == [["newer", "held"], ["other"]]


def test_a_build_that_was_rolled_back_is_no_candidate_until_it_is_chosen_again(
    tmp_path: Path, make: Make
) -> None:
    builds = Builds(tmp_path)
    make("good")
    make("bad")

    builds.mark_failed(builds.named("bad"), "it died")

    assert ids(builds) == [["good"]]
    assert builds.named("bad").failed == "it died"
    builds.use(builds.named("bad"))
    assert ids(builds) == [["bad", "good"]]


def test_every_switch_shows_in_the_choices(tmp_path: Path, make: Make) -> None:
    builds = Builds(tmp_path)
    make("one")
    make("two")
    seen = [builds.choices()]
    changes: tuple[Callable[[], None], ...] = (
        lambda: builds.use(builds.named("one")),
        lambda: builds.use(builds.named("two")),
        lambda: builds.choose(builds.named("one"), Choice.PINNED),
        lambda: builds.drop("cpu", Choice.PINNED),
    )
    for change in changes:
        change()
        assert builds.choices() != seen[-1]
        seen.append(builds.choices())

    assert seen[-1] == seen[2]


def test_a_build_is_on_trial_from_when_it_was_made_current(tmp_path: Path, make: Make) -> None:
    builds = Builds(tmp_path)
    make("one")

    assert builds.named("one").on_trial_since() is None
    builds.use(builds.named("one"))
    assert builds.named("one").on_trial_since() == (tmp_path / "cpu/current").lstat().st_mtime
    builds.choose(builds.named("one"), Choice.PINNED)
    assert builds.named("one").on_trial_since() is None


def test_a_build_whose_link_goes_meanwhile_is_not_on_trial(tmp_path: Path, make: Make) -> None:
    builds = Builds(tmp_path)
    make("one")
    builds.use(builds.named("one"))
    current = builds.named("one")

    (tmp_path / "cpu" / "current").unlink()

    assert current.on_trial_since() is None


@pytest.mark.parametrize("choice", list(Choice))
def test_a_build_that_a_link_points_at_is_not_removed(
    tmp_path: Path, make: Make, choice: Choice
) -> None:
    builds = Builds(tmp_path)
    make("one")
    builds.choose(builds.named("one"), choice)

    with pytest.raises(BuildInUse, match=choice.value):
        builds.remove(builds.named("one"))

    assert builds.named("one").binary.exists()


def test_a_removed_build_leaves_nothing(tmp_path: Path, make: Make) -> None:
    builds = Builds(tmp_path)
    make("one")
    (tmp_path / "cpu" / ".removed-two" / "bin").mkdir(parents=True)  # killed while it did
    builds.mark_failed(builds.named("one"), "it died")

    builds.remove(builds.named("one"))

    assert list((tmp_path / "cpu").iterdir()) == []


def test_a_build_is_removed_though_an_earlier_removal_of_it_was_killed(
    tmp_path: Path, make: Make
) -> None:
    builds = Builds(tmp_path)
    make("one")
    (tmp_path / "cpu" / ".removed-one" / "bin").mkdir(parents=True)  # it was built again since

    builds.remove(builds.named("one"))

    assert list((tmp_path / "cpu").iterdir()) == []


def test_an_unknown_build_is_answered_with_those_there_are(tmp_path: Path, make: Make) -> None:
    make("one")

    with pytest.raises(NoSuchBuild, match="no build 'two'; there are: cpu/one"):
        Builds(tmp_path).named("two")


def test_builds_of_two_backends_are_told_apart(tmp_path: Path, make: Make) -> None:
    make("one")
    make("one", backend="vulkan")

    assert Builds(tmp_path).named("vulkan/one").backend == "vulkan"


def test_what_a_build_says_of_itself_is_read_and_may_be_nonsense(
    tmp_path: Path, make: Make
) -> None:
    make("one", manifest='{"commit": "0c1e57", "found": {"version": "9"}}')
    make("two", manifest="[")

    builds = Builds(tmp_path)

    assert builds.named("one").manifest().commit == "0c1e57"
    assert builds.named("one").manifest().found.version == "9"
    assert builds.named("two").manifest().commit == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda builds, build: builds.choose(build, Choice.CURRENT),
        lambda builds, build: builds.use(build),
        lambda builds, build: builds.drop(build.backend, Choice.PINNED),
        lambda builds, build: builds.mark_failed(build, "it died"),
        lambda builds, build: builds.remove(build),
    ],
    ids=["choose", "use", "drop", "mark failed", "remove"],
)
def test_a_folder_that_is_a_file_is_said_in_a_sentence(
    tmp_path: Path, make: Make, change: Callable[[Builds, Build], None]
) -> None:
    make("one")
    builds = Builds(tmp_path)
    build = builds.named("one")
    (tmp_path / "cpu").rename(tmp_path / "moved")
    (tmp_path / "cpu").touch()

    with pytest.raises(BuildsUnwritable, match="cannot be changed"):
        change(builds, build)
