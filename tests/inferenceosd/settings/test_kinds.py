"""inferenceosd.settings.kinds: what each kind takes, refuses and shows."""

import datetime
import math

import pytest

from inferenceosd.settings.kinds import (
    DURATION,
    ENVIRONMENT,
    FLAG,
    LISTEN,
    PATH,
    SERVERS,
    SIZE,
    TEXT,
    TEXTS,
    Folders,
    Kind,
    Listen,
    Refused,
    choice,
    finite_duration,
    integer,
    or_auto,
)

FOLDERS = Folders(base="/etc/inferenceosd", home="/home/ada")
AUTO_INTEGER = or_auto(integer(1, 8))
COLOUR = choice("red", "blue")
MOMENT = finite_duration(1, 60)


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (TEXT, "a b", "a b"),
        (PATH, "x/../y", "/etc/inferenceosd/y"),
        (PATH, "/abs", "/abs"),
        (PATH, "~", "/home/ada"),
        (PATH, "~bob/x", "/etc/inferenceosd/~bob/x"),
        (FLAG, False, False),
        (SIZE, 0, 0),
        (SIZE, "1.5GiB", 3 << 29),
        (DURATION, 0, 0.0),
        (DURATION, 1.5, 1.5),
        (DURATION, "1h30m", 5400.0),
        (DURATION, -1, math.inf),
        (MOMENT, "1m", 60.0),
        (LISTEN, "localhost:80", Listen("localhost", 80)),
        (LISTEN, "[::1]:80", Listen("::1", 80)),
        (LISTEN, ":0", Listen("", 0)),
        (SERVERS, ["10.0.0.2:50052", "[::1]:1"], ("10.0.0.2:50052", "[::1]:1")),
        (AUTO_INTEGER, "auto", None),
        (AUTO_INTEGER, 8, 8),
        (COLOUR, "RED", "red"),
        (TEXTS, [], ()),
        (ENVIRONMENT, {"A": "", "B_1": "x"}, (("A", ""), ("B_1", "x"))),
    ],
)  # fmt: skip
def test_what_a_kind_takes(kind: Kind[object], written: object, value: object) -> None:
    assert kind.read(written, FOLDERS) == value


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (TEXT, ""),
        (TEXT, " "),
        (TEXT, "two\nlines"),
        (TEXT, "x" * 5000),
        (TEXT, 1),
        (TEXT, datetime.date(2026, 1, 1)),
        (PATH, ["x"]),
        (FLAG, 1),
        (FLAG, "true"),
        (SIZE, -1),
        (SIZE, True),
        (SIZE, 1.5),
        (SIZE, "6GB5"),
        (SIZE, 1 << 70),
        (DURATION, math.nan),
        (DURATION, "5"),
        (DURATION, "9" * 40 + "h"),
        (DURATION, []),
        (MOMENT, "2m"),
        (MOMENT, -1),
        (SERVERS, ["10.0.0.2"]),
        (SERVERS, [":50052"]),
        (SERVERS, ["host:0"]),
        (SERVERS, ["a,b:1"]),
        (LISTEN, "80"),
        (LISTEN, "::1:80"),
        (LISTEN, "[::1]"),
        (LISTEN, "host:65536"),
        (LISTEN, "host:８０"),
        (LISTEN, "http://host:80"),
        (AUTO_INTEGER, 9),
        (AUTO_INTEGER, "8"),
        (AUTO_INTEGER, True),
        (COLOUR, "green"),
        (TEXTS, "one"),
        (TEXTS, ["one", 2]),
        (TEXTS, ["x"] * 1001),
        (ENVIRONMENT, {"A": 1}),
        (ENVIRONMENT, {"1A": "x"}),
        (ENVIRONMENT, {"A": "\0"}),
        (ENVIRONMENT, []),
    ],
)  # fmt: skip
def test_what_a_kind_refuses(kind: Kind[object], written: object) -> None:
    with pytest.raises(Refused):
        kind.read(written, FOLDERS)


def test_a_refusal_inside_of_a_list_says_which_item() -> None:
    with pytest.raises(Refused) as caught:
        TEXTS.read(["a", "b", 3], FOLDERS)

    assert caught.value.path == (2,)


@pytest.mark.parametrize(
    ("listen", "shown"),
    [
        (Listen("127.0.0.1", 80), "127.0.0.1:80"),
        (Listen("::1", 80), "[::1]:80"),
        (Listen("", 80), ":80"),
    ],
)
def test_an_address_is_shown_as_it_is_written(listen: Listen, shown: str) -> None:
    assert str(listen) == shown
    assert LISTEN.read(shown, FOLDERS) == listen
