"""inferenceosd.commands.run_answer: what of an answer is put out, and how."""

import msgspec
import pytest

from inferenceosd.commands.run_answer import ChatLine, Printed, harmless, what_it_took

LINES = (
    b'{"message":{"role":"assistant","content":"","thinking":"Hm"}}',
    b'{"message":{"role":"assistant","content":"","thinking":"..."}}',
    b'{"message":{"role":"assistant","content":"Yes\\u001b[2J"}}',
    b'{"message":{"role":"assistant","content":"."},"done":true,"done_reason":"stop"}',
)


def put_out(*, on_terminal: bool) -> Printed:
    printed = Printed(on_terminal)
    for line in LINES:
        printed.print(msgspec.json.decode(line, type=ChatLine).message)
    printed.end()
    return printed


def test_thoughts_are_dimmed_on_a_terminal_and_commands_to_it_are_not_followed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = put_out(on_terminal=True)

    assert capsys.readouterr().out == "\x1b[2mHm...\x1b[22m\n\nYes\\x1b[2J.\n"
    assert printed.text == "Yes\x1b[2J."


def test_what_reads_a_pipe_gets_the_answer_alone_and_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_out(on_terminal=False)

    assert capsys.readouterr().out == "Yes\x1b[2J.\n"


def test_an_answer_that_is_stopped_while_it_thinks_leaves_the_terminal_bright(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = Printed(on_terminal=True)
    printed.print(msgspec.json.decode(LINES[0], type=ChatLine).message)
    printed.end()

    assert capsys.readouterr().out == "\x1b[2mHm\x1b[22m\n"


def test_nothing_that_came_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    Printed(on_terminal=True).end()

    assert capsys.readouterr().out == ""


def test_text_of_any_language_is_shown_as_it_is() -> None:
    assert harmless("Grüße,\n\t世界 👩‍🚀") == "Grüße,\n\t世界 👩‍🚀"
    assert harmless("\x07\r\x9b") == r"\x07\r\x9b"


def test_what_an_answer_took_is_told_in_seconds_and_tokens_a_second() -> None:
    last = ChatLine(
        total_duration=2_500_000_000, load_duration=500_000_000, prompt_eval_count=30,
        prompt_eval_duration=1_000_000_000, eval_count=20, eval_duration=800_000_000,
    )  # fmt: skip

    assert what_it_took(last).splitlines() == [
        "total duration:       2.500 s",
        "load duration:        0.500 s",
        "prompt eval count:    30 tokens",
        "prompt eval duration: 1.000 s",
        "prompt eval rate:     30.00 tokens/s",
        "eval count:           20 tokens",
        "eval duration:        0.800 s",
        "eval rate:            25.00 tokens/s",
    ]
    assert "prompt eval rate:     -" in what_it_took(ChatLine())
