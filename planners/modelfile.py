"""A Modelfile: Ollama's text of what a model is made of, read into one value.

Knows no disk: whether a FROM is a file or a model's name is its reader's to find out.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from planners.recipe import Message, ParameterValue

ROLES = ("system", "user", "assistant")
DROPPED = (
    "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock", "mirostat",
    "mirostat_tau", "mirostat_eta", "numa", "tfs_z",
)  # fmt: skip
"""Parameters that Ollama gave up, and leaves out of what it makes."""
_TEXTS = ("template", "system", "renderer", "parser", "requires")  # of several the last one counts
_COMMANDS = ("from", "parameter", "adapter", "license", "message", *_TEXTS)
_TRUE = ("1", "t", "T", "TRUE", "true", "True")  # as Go's strconv.ParseBool has them
_FALSE = ("0", "f", "F", "FALSE", "false", "False")
_INT64 = 1 << 63


class Modelfile(Struct, frozen=True):
    """All that one says, each in the order of the file."""

    bases: tuple[str, ...]
    """What FROM names: a model, or files; one at least."""
    adapters: tuple[str, ...] = ()
    parameters: tuple[tuple[str, ParameterValue], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """By command in lower case: template, system, renderer, parser, requires."""
    messages: tuple[Message, ...] = ()
    licenses: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    """Parameters that mean nothing any more, and were left out."""


class BadModelfile(ValueError):
    """A line that cannot be followed; `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        self.line, self.why = line, why
        super().__init__(f"line {line}: {why}")


def read_modelfile(text: str, *, kinds: Mapping[str, str]) -> Modelfile:
    """What `text` says; `kinds` are the known parameters with Ollama's words for their types.

    Raises BadModelfile. (Ollama's parser/parser.go and api/types.go.)
    """
    told = tuple(_commands(text.removeprefix("\ufeff")))
    bases = tuple(each.value for each in told if each.name == "from")
    if not bases:
        raise BadModelfile(max(1, len(text.splitlines())), "no FROM line")
    asked = [each for each in told if each.name == "parameter"]
    return Modelfile(
        bases=bases,
        adapters=tuple(each.value for each in told if each.name == "adapter"),
        parameters=_parameters(asked, kinds),
        texts=tuple({each.name: each.value for each in told if each.name in _TEXTS}.items()),
        messages=tuple(_message(each) for each in told if each.name == "message"),
        licenses=tuple(each.value for each in told if each.name == "license"),
        dropped=tuple(dict.fromkeys(each.key for each in asked if each.key in DROPPED)),
    )


class _Command(Struct, frozen=True):
    line: int
    name: str
    key: str
    """A parameter's name, a message's role; else ""."""
    value: str


def _commands(text: str) -> Iterator[_Command]:
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at].strip()
        if not line or line.startswith("#"):
            at += 1
            continue
        number = at + 1
        name, key, rest = _split(line, number)
        value, at = _value(lines, at, rest)
        if not value and name in ("from", "adapter", "parameter"):
            raise BadModelfile(number, f"{name.upper()} has no value")
        yield _Command(number, name, key, value)


def _split(line: str, number: int) -> tuple[str, str, str]:
    """A line's command in lower case, the word that it needs before its value, and the value."""
    word, rest = _first_word(line)
    name = word.lower()
    if name not in _COMMANDS:
        known = ", ".join(command.upper() for command in _COMMANDS)
        raise BadModelfile(number, f"{word[:80]!r} is no command; there are {known}")
    if name not in ("parameter", "message"):
        return name, "", rest
    key, value = _first_word(rest)
    if not key:
        raise BadModelfile(number, f"{name.upper()} names nothing")
    if name == "parameter":
        return name, key, value
    if key.lower() not in ROLES:
        raise BadModelfile(number, f"a MESSAGE is of {', '.join(ROLES)}, not of {key[:80]!r}")
    return name, key.lower(), value


def _first_word(text: str) -> tuple[str, str]:
    word, *rest = text.split(maxsplit=1) or [""]
    return word, rest[0] if rest else ""


def _value(lines: list[str], begun: int, rest: str) -> tuple[str, int]:
    """A value without its quotation marks, and where the next command may stand.

    What is between the marks is kept to the space; nothing in it is escaped.
    """
    mark = next((mark for mark in ('"""', '"') if rest.startswith(mark)), "")
    if not mark:
        return rest, begun + 1
    if len(rest) >= 2 * len(mark) and rest.endswith(mark):
        return rest[len(mark) : -len(mark)], begun + 1
    first = lines[begun][lines[begun].rindex(rest) + len(mark) :]
    for at in range(begun + 1, len(lines)):
        last = lines[at].rstrip()
        if last.endswith(mark):
            text = "\n".join((first, *lines[begun + 1 : at], last[: -len(mark)]))
            return text, at + 1
    raise BadModelfile(begun + 1, f"the quotation that begins with {mark} never ends")


def _message(told: _Command) -> Message:
    return Message(told.key, told.value)


def _parameters(
    asked: list[_Command], kinds: Mapping[str, str]
) -> tuple[tuple[str, ParameterValue], ...]:
    """Of one that is said again the last counts, but that every `stop` does."""
    found: dict[str, ParameterValue] = {}
    for each in asked:
        if each.key in DROPPED:
            continue
        if each.key not in kinds:
            raise BadModelfile(each.line, f"unknown parameter '{each.key[:80]}'")
        before = found.get(each.key)
        value = _typed(each, kinds[each.key])
        both = isinstance(before, tuple) and isinstance(value, tuple)
        found[each.key] = (*before, *value) if both else value  # type: ignore[misc]
    return tuple(found.items())


def _typed(told: _Command, kind: str) -> ParameterValue:
    text = told.value
    if kind == "array":
        return (text,)
    try:
        if kind == "boolean":
            return (*_FALSE, *_TRUE).index(text) >= len(_FALSE)
        value = int(text) if kind == "integer" else float(text)
        if not -_INT64 <= value < _INT64:  # no NaN either, which JSON has no word for
            raise ValueError(text)
    except ValueError as exc:
        why = f"{told.key} must be of type {kind}, not {text[:80]!r}"
        raise BadModelfile(told.line, why) from exc
    return value
