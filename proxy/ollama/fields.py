"""JSON objects read as Ollama reads them: names without case, null as absent, its error texts."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import msgspec

from planners.durations import wished_duration
from proxy.bodies import bound_values
from proxy.errors import BadJson, BadRequest

_KINDS = {
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
}
_BLANKS = " \t\r\n"
MAX_VALUES = 300_000
"""In one body: more than the context of 256 Ki tokens that a client of /api/generate sends back.

Fewer than elsewhere, since all of it becomes objects here: so many take 0.1 s at worst.
"""


class WrongType(BadRequest):
    """A field of another JSON type than Ollama's API gives it."""

    def __init__(self, *, value: object, field: str, wanted: str) -> None:
        self.field, self.wanted = field, wanted
        kind = _KINDS.get(type(value), "value")
        if wanted == "int" and kind == "number":  # a whole one is wanted
            kind = f"number {msgspec.json.encode(value).decode()}"
        super().__init__(
            f"json: cannot unmarshal {kind} into Go struct field {field} of type {wanted}"
        )


class Fields:
    """One JSON object, as typed reads by name."""

    __slots__ = ("_owner", "_values")

    def __init__(self, values: Mapping[str, Any], owner: str) -> None:
        self._values = {key.lower(): value for key, value in values.items() if value is not None}
        self._owner = owner

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        value = self._values.get(name, default)
        return value if isinstance(value, str) else self._refuse(name, "string")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean."""
        value = self._values.get(name, default)
        return value if isinstance(value, bool) else self._refuse(name, "bool")

    def whole(self, name: str, default: int = 0) -> int:
        """An integer."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, "int")
        return value

    def whole_numbers(self, name: str) -> tuple[int, ...]:
        """An array of integers."""
        values = self.items(name, "[]int")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int):
                self._refuse_value(value, name, "int")
        return tuple(values)

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings."""
        values = self.items(name, "[]string")
        for value in values:
            if not isinstance(value, str):
                self._refuse_value(value, name, "string")
        return tuple(values)

    def items(self, name: str, wanted: str = "[]object") -> list[Any]:
        """An array of anything."""
        value = self._values.get(name, [])
        return value if isinstance(value, list) else self._refuse(name, wanted)

    def children(self, name: str, owner: str) -> Iterator["Fields"]:
        """An array of objects."""
        for value in self.items(name, f"[]api.{owner}"):
            if not isinstance(value, dict):
                self._refuse_value(value, name, f"api.{owner}")
            yield Fields(value, f"{self._owner}.{name}")

    def child(self, name: str, owner: str) -> "Fields":
        """An object."""
        return Fields(self.mapping(name, f"api.{owner}"), f"{self._owner}.{name}")

    def mapping(self, name: str, wanted: str = "map[string]interface {}") -> dict[str, Any]:
        """An object as it stands."""
        value = self._values.get(name, {})
        return value if isinstance(value, dict) else self._refuse(name, wanted)

    def value(self, name: str) -> Any:
        """Whatever is there; None where nothing is."""
        return self._values.get(name)

    def keep_alive_s(self) -> float | None:
        """The keep_alive, None where the request has none. Raises BadDuration."""
        return wished_duration(self._values.get("keep_alive"))

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        self._refuse_value(self._values[name], name, wanted)

    def _refuse_value(self, value: object, name: str, wanted: str) -> NoReturn:
        raise WrongType(value=value, field=f"{self._owner}.{name}", wanted=wanted)


def read_object(body: bytes, owner: str) -> Fields:
    """The first JSON value of `body`, an object or null; the rest is ignored.

    Raises BadJson, TooManyValues.
    """
    bound_values(body, limit=MAX_VALUES)
    if not body.strip(_BLANKS.encode()):
        raise BadJson("missing request body")
    try:
        value = msgspec.json.decode(body)
    except RecursionError as exc:
        raise BadJson("the request body is nested too deeply") from exc
    except ValueError:  # no JSON, no UTF-8, half a surrogate pair, a number of thousands of digits
        value = _first_value(body)
    if value is None:
        return Fields({}, owner)
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "value")
        raise BadJson(f"json: cannot unmarshal {kind} into Go value of type api.{owner}")
    return Fields(value, owner)


def _first_value(body: bytes) -> Any:
    """The slow way, for a body that is not one clean value; faults are worded as Go does."""
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        raise BadJson("the request body is no UTF-8") from exc
    start = len(text) - len(text.lstrip(_BLANKS))
    try:
        value = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode(text, start)[0]
        return _encodable(value)
    except json.JSONDecodeError as exc:
        if exc.pos >= len(text.rstrip(_BLANKS)) or exc.msg.startswith("Unterminated string"):
            raise BadJson("unexpected EOF") from exc
        where = (
            "looking for beginning of value" if exc.msg == "Expecting value" else "in JSON input"
        )
        raise BadJson(f"invalid character {text[exc.pos]!r} {where}") from exc
    except ValueError as exc:
        raise BadJson("the request body holds a number of thousands of digits") from exc
    except RecursionError as exc:
        raise BadJson("the request body is nested too deeply") from exc


def _encodable(value: Any) -> Any:
    """`value` with U+FFFD, as in Go, for halves of surrogate pairs, which have no UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"invalid character {name[0]!r} looking for beginning of value")
