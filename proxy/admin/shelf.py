"""What `inferenceosctl pull`, `rm`, `cp` and `show` are told: models that come, go, are there."""

import msgspec


class PullLine(msgspec.Struct, omit_defaults=True):
    """How far a pull is; or, in its last line, why it ended."""

    status: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0
    error: str = ""


class DoneReport(msgspec.Struct, frozen=True):
    """That it is done: a model of that name came or went."""

    model: str


class ShowReport(msgspec.Struct, frozen=True):
    """All that `inferenceosctl show` tells of a model."""

    model: str
    path: str
    store: str
    """The folder of its store; "" for a file."""
    digest: str
    architecture: str
    n_params: int
    quantization: str
    n_ctx_train: int
    n_embd: int
    size_bytes: int
    modified_at: float
    capabilities: tuple[str, ...]
    template_source: str
    """As in /api/show: `file`, `layer`, "" for none, `none: ` and why not."""
    parameters: str
    """A line for each."""
    system: str
    licenses: tuple[str, ...]
    modelfile: str
