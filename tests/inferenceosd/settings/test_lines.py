"""inferenceosd.settings.lines: where each key of a TOML text stands."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from inferenceosd.settings.kinds import KeyPath
from inferenceosd.settings.lines import key_lines, nearest_line

TEXT = '''# comment
[server]
listen = ":1" # = not a key
a.b."c d" = 1

[devices."NVIDIA RTX"]
limit = "6GiB"
['single'.'quoted']
x = \'\'\'
y = 1
\'\'\'
[models]
dirs = [ # why
    "a]",
    'b',
]
text = """
[not.a.table] \\"""
z = 2"""
env = { A = "1", "B\\u0020C" = [2] }
[[model]]
name = "one"
[[model]]
name = "two"
[model.sub]
deep = true
'''


def test_every_form_of_key_has_its_line() -> None:
    lines = key_lines(TEXT)

    expected: dict[KeyPath, int] = {
        ("server",): 2,
        ("server", "listen"): 3,
        ("server", "a", "b", "c d"): 4,
        ("devices", "NVIDIA RTX"): 6,
        ("devices", "NVIDIA RTX", "limit"): 7,
        ("single", "quoted", "x"): 9,
        ("models", "dirs"): 13,
        ("models", "dirs", 0): 14,
        ("models", "dirs", 1): 15,
        ("models", "text"): 17,
        ("models", "env"): 20,
        ("models", "env", "B C"): 20,
        ("model", 0): 21,
        ("model", 0, "name"): 22,
        ("model", 1): 23,
        ("model", 1, "name"): 24,
        ("model", 1, "sub", "deep"): 26,
    }
    assert {path: lines.get(path) for path in expected} == expected


def test_text_inside_of_strings_is_no_key() -> None:
    lines = key_lines(TEXT)

    assert not {path for path in lines if path[-1] in ("y", "z", "not")}


def test_what_has_no_line_of_its_own_has_its_parents() -> None:
    lines = key_lines('[server]\nlisten = ":1"\n')

    assert nearest_line(lines, ("server", "listen", 3, "x")) == 2
    assert nearest_line(lines, ("nowhere",)) is None


def test_values_nested_beyond_reason_end_the_search_and_nothing_else() -> None:
    lines = key_lines("a = 1\nb = " + "[" * 200 + "]" * 200 + "\n")

    assert lines[("a",)] == 1
    assert lines[("b",)] == 2


_KEY = st.text(alphabet="ab -\"'.=[]#\\\u00e9\n", min_size=1, max_size=6)
_VALUE = st.one_of(st.integers(), st.booleans(), st.text(alphabet="ab\"'\\\n#=[]{}", max_size=12))


def _toml_text(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(escapes.get(char, char) for char in text) + '"'


def _toml(value: object) -> str:
    if isinstance(value, str):
        return _toml_text(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(
    tables=st.dictionaries(_KEY, st.dictionaries(_KEY, _VALUE, max_size=4), max_size=4),
    blanks=st.integers(0, 2),
)
def test_each_key_of_a_generated_text_is_found_where_it_was_written(
    tables: dict[str, dict[str, object]], blanks: int
) -> None:
    lines: list[str] = []
    expected: dict[KeyPath, int] = {}
    for name, table in tables.items():
        lines += ["# x = 1"] * blanks + [f"[{_toml_text(name)}]"]
        expected[(name,)] = len(lines)
        for key, value in table.items():
            lines.append(f"{_toml_text(key)} = {_toml(value)}")
            expected[(name, key)] = len(lines)
    text = "\n".join(lines)

    assert tomllib.loads(text) == tables
    assert key_lines(text) == expected
