"""inferenceosd.commands.tables: columns line up."""

from inferenceosd.commands.tables import folded, table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    shown = table(
        ("NAME", "SIZE", "WHY"), [("a", "1 B", "x"), ("longer", "10 GiB", "")], right="SIZE"
    )

    assert shown == (
        "NAME      SIZE  WHY\n"
        "a          1 B  x\n"
        "longer  10 GiB"
    )  # fmt: skip


def test_wide_and_combining_characters_keep_the_columns() -> None:
    shown = table(("NAME", "X"), [("模型", "1"), ("e\u0301", "2")])

    assert shown == (
        "NAME  X\n"
        "模型  1\n"
        "e\u0301     2"
    )  # fmt: skip


def test_a_long_last_cell_is_folded_below_its_start_on_a_terminal() -> None:
    shown = table(
        ("A", "WHY"), [("one", "because of this and of that and so on"), ("two", "")], columns=30
    )

    assert shown == (
        "A    WHY\n"
        "one  because of this and of\n"
        "     that and so on\n"
        "two"
    )  # fmt: skip


def test_a_word_longer_than_the_terminal_stays_whole() -> None:
    path = "/a/very/long/path/of/an/engine/that/somebody/copies"

    assert folded("one  ", f"at {path}", columns=30) == f"one  at\n     {path}"


def test_where_hardly_any_room_is_left_nothing_is_folded() -> None:
    line = table(("A", "WHY"), [("a" * 20, "because of this and of that")], columns=30)

    assert len(line.splitlines()) == 2


def test_no_rows_are_no_table() -> None:
    assert table(("NAME", "SIZE"), []) == ""
