"""What goes with a model's weights: the parameters, texts and first messages of its maker.

Ollama's Modelfile without its FROM. Read from a store by supervisor.store; nothing here is a file.
"""

from msgspec import Struct

MAX_NUM_CTX = (1 << 31) - 1  # llama-server counts tokens in 32 bits

ParameterValue = str | int | float | bool | tuple[str, ...]


class Message(Struct, frozen=True):
    """One that stands before every conversation."""

    role: str
    content: str


class Recipe(Struct, frozen=True):
    """How a model is meant to be asked; requests that say otherwise go before it."""

    parameters: tuple[tuple[str, ParameterValue], ...] = ()
    """Ollama's options by name, in the order of the layer."""
    system: str = ""
    template: str = ""
    """A Go template; kept and shown."""
    messages: tuple[Message, ...] = ()
    licenses: tuple[str, ...] = ()

    @property
    def num_ctx(self) -> int | None:
        """Tokens of context that it asks for; None where it asks for none."""
        told = dict(self.parameters).get("num_ctx")
        if isinstance(told, bool) or not isinstance(told, int | float):
            return None
        return int(told) if 1 <= told <= MAX_NUM_CTX else None


PLAIN = Recipe()
"""Of a bare file."""
