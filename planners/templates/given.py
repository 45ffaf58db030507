"""What a model's TEMPLATE layer comes to for its llama-server. Pure."""

from functools import lru_cache

from msgspec import Struct

from planners.templates.conversation import read
from planners.templates.go_nodes import BadTemplate
from planners.templates.jinja import jinja

_REMEMBERED = 256  # layers; a folder is looked at again and again


class GivenTemplate(Struct, frozen=True):
    """The chat template of a model whose file has none of its own."""

    jinja: str
    """For llama-server; "" where it cannot be told."""
    why_not: str
    """What stands in the way, as a sentence's end; "" where nothing does."""


@lru_cache(maxsize=_REMEMBERED)
def given_template(source: str) -> GivenTemplate:
    """What a TEMPLATE layer's text comes to: never nearly the same."""
    try:
        return GivenTemplate(jinja(read(source)), "")
    except BadTemplate as exc:
        return GivenTemplate("", exc.why)
