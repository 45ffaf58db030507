"""inferenceosd.commands.run_lines: what is written in a chat, and what is meant by it."""

import pytest

from inferenceosd.commands.run_lines import Meant, Order, Say, SetSystem, Unknown, is_open, meant


@pytest.mark.parametrize(
    ("text", "wished"),
    [
        ("why?", Say("why?")),
        ("  why?  ", Say("why?")),
        ('"""a\nb"""', Say("a\nb")),
        ('"""\na\nb\n"""', Say("a\nb")),
        ('say "yes"', Say('say "yes"')),
        ("a / b", Say("a / b")),
        ("", Order.NOTHING),
        ("  ", Order.NOTHING),
        ('""""""', Order.NOTHING),
        ("/bye", Order.LEAVE),
        ("/exit", Order.LEAVE),
        (" /clear ", Order.CLEAR),
        ("/?", Order.HELP),
        ("/help", Order.HELP),
        ("/set system Be brief.", SetSystem("Be brief.")),
        ('/set system """Be\nbrief."""', SetSystem("Be\nbrief.")),
        ("/set system", Unknown("/set")),
        ("/set verbose x", Unknown("/set")),
        ("/set", Unknown("/set")),
        ("/bye bye", Unknown("/bye")),
        ("/etc/passwd", Unknown("/etc/passwd")),
    ],
)
def test_what_is_written_is_said_or_done(text: str, wished: Meant) -> None:
    assert meant(text) == wished


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [
        ("why?", False),
        ('"""a', True),
        ('"""a\nb"""', False),
        ('"""', True),
        ('""""""', False),
        ('say """a', False),
        ('/set system """a', True),
        ('/set system """a\nb"""  ', False),
    ],
)
def test_a_text_goes_on_until_its_quotation_ends(text: str, goes_on: bool) -> None:
    assert is_open(text) is goes_on
