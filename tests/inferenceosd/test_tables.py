"""inferenceosd.tables: columns line up."""

from inferenceosd.tables import table


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


def test_headers_stand_alone_over_nothing() -> None:
    assert table(("A", "B"), []) == "A  B"
