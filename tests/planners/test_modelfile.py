"""planners.modelfile: what a Modelfile says, and which line cannot be followed."""

import pytest

from planners.modelfile import BadModelfile, Modelfile, read_modelfile
from planners.recipe import Message

KINDS = {
    "temperature": "float32", "num_ctx": "integer", "use_mmap": "boolean", "stop": "array",
}  # fmt: skip


def read(text: str) -> Modelfile:
    return read_modelfile(text, kinds=KINDS)


def test_every_command_is_read_whatever_its_case() -> None:
    told = read(
        "# a comment\n"
        "from tiny:135m\n"
        "\n"
        "  Parameter temperature 0.5\n"
        "PARAMETER num_ctx 2048\n"
        "PARAMETER\tuse_mmap\tfalse\n"
        "TEMPLATE {{ .Prompt }} # is no comment\n"
        "SYSTEM Be brief.\n"
        "ADAPTER ./one.gguf\n"
        "MESSAGE User hello there\n"
        "message assistant hi\n"
        "LICENSE MIT\n"
        "LICENSE Apache\n"
        "REQUIRES 0.5.0\n"
    )

    assert told == Modelfile(
        bases=("tiny:135m",),
        adapters=("./one.gguf",),
        parameters=(("temperature", 0.5), ("num_ctx", 2048), ("use_mmap", False)),
        texts=(
            ("template", "{{ .Prompt }} # is no comment"),
            ("system", "Be brief."),
            ("requires", "0.5.0"),
        ),
        messages=(Message("user", "hello there"), Message("assistant", "hi")),
        licenses=("MIT", "Apache"),
    )


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('"""Be brief."""', "Be brief."),
        ('"Be brief."', "Be brief."),
        ('  """Be brief."""  ', "Be brief."),
        ('"""Be\n# brief\n  and kind."""', "Be\n# brief\n  and kind."),
        ('"""\nBe brief.\n"""\t', "\nBe brief.\n"),
        ('"""two  \n\n spaces"""', "two  \n\n spaces"),
        ('"Be\nbrief."', "Be\nbrief."),
        ('"""say "yes""""', 'say "yes"'),
        ('say "yes" now', 'say "yes" now'),
        ('""', ""),
        (r'"""a \n b"""', r"a \n b"),
    ],
)
def test_a_quotation_is_kept_to_the_space(written: str, text: str) -> None:
    told = read(f"FROM x\nSYSTEM {written}\nPARAMETER num_ctx 1")

    assert told.texts == (("system", text),)
    assert told.parameters == (("num_ctx", 1),)


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_it() -> None:
    assert read("\ufeffFROM x\r\nSYSTEM y\r\n").texts == (("system", "y"),)


def test_of_what_is_said_again_the_last_counts_but_every_stop_does() -> None:
    told = read(
        "FROM x\nSYSTEM a\nSYSTEM b\nPARAMETER stop <a>\nPARAMETER num_ctx 1\n"
        'PARAMETER stop "<b c>"\nPARAMETER num_ctx 2'
    )

    assert told.texts == (("system", "b"),)
    assert told.parameters == (("stop", ("<a>", "<b c>")), ("num_ctx", 2))


def test_parameters_that_were_given_up_are_left_out_and_named_once() -> None:
    told = read("FROM x\nPARAMETER mirostat 1\nPARAMETER mirostat 2\nPARAMETER low_vram true")

    assert told.parameters == ()
    assert told.dropped == ("mirostat", "low_vram")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "no FROM line"),
        ("SYSTEM a\n# b\n", 2, "no FROM line"),
        ("FROM x\n\nPARAMETER odd 1", 3, "unknown parameter 'odd'"),
        ("FROM x\nPARAMETER num_ctx many", 2, "num_ctx must be of type integer, not 'many'"),
        ("FROM x\nPARAMETER num_ctx 1.5", 2, "num_ctx must be of type integer, not '1.5'"),
        ("FROM x\nPARAMETER num_ctx 9999999999999999999", 2, "num_ctx must be of type integer"),
        ("FROM x\nPARAMETER temperature nan", 2, "temperature must be of type float32"),
        ("FROM x\nPARAMETER temperature inf", 2, "temperature must be of type float32"),
        ("FROM x\nPARAMETER use_mmap maybe", 2, "use_mmap must be of type boolean, not 'maybe'"),
        ("FROM x\nPARAMETER num_ctx", 2, "PARAMETER has no value"),
        ("FROM x\nPARAMETER", 2, "PARAMETER names nothing"),
        ("FROM", 1, "FROM has no value"),
        ("FROM x\nMESSAGE robot hi", 2, "a MESSAGE is of system, user, assistant, not of 'robot'"),
        ("FROM x\nRUN y", 2, "'RUN' is no command; there are FROM, PARAMETER"),
        ('FROM x\nSYSTEM """a\nb\n', 2, 'the quotation that begins with """ never ends'),
        ('FROM x\nSYSTEM "a', 2, 'the quotation that begins with " never ends'),
        ('FROM x\nSYSTEM """""', 2, 'the quotation that begins with """ never ends'),
    ],
)
def test_what_cannot_be_followed_is_named_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(BadModelfile) as caught:
        read(text)

    assert caught.value.line == line
    assert caught.value.why.startswith(says)
    assert str(caught.value).startswith(f"line {line}: ")


@pytest.mark.parametrize("word", ["1", "t", "T", "TRUE", "true", "True"])
def test_flags_are_written_as_go_writes_them(word: str) -> None:
    assert read(f"FROM x\nPARAMETER use_mmap {word}").parameters == (("use_mmap", True),)
    assert read("FROM x\nPARAMETER use_mmap F").parameters == (("use_mmap", False),)
