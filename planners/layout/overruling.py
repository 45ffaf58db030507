"""Which of a model's own flags take a decision away from the plan. Pure.

The engine takes the last of two equal options, and a model's flags come last.
"""

from collections.abc import Iterator, Sequence

from planners.reasons import Reason, ReasonKind

_DECIDED = (
    ("--device", "-dev"),
    ("--n-gpu-layers", "--gpu-layers", "-ngl"),
    ("--tensor-split", "-ts"),
    ("--split-mode", "-sm"),
    ("--main-gpu", "-mg"),
    ("--rpc",),
    ("--n-cpu-moe", "-ncmoe"),
    ("--cpu-moe", "-cmoe"),
    ("--override-tensor", "-ot"),
    ("--no-kv-offload", "-nkvo", "--kv-offload", "-kvo"),
    ("--fit", "-fit"),
    ("--batch-size", "-b"),
    ("--ubatch-size", "-ub"),
    ("--threads", "-t"),
    ("--cache-type-k", "-ctk"),
    ("--cache-type-v", "-ctv"),
    ("--flash-attn", "-fa"),
    ("--cache-ram", "-cram"),
    ("--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"),
    ("--swa-full",),
    ("--kv-unified", "-kvu", "--no-kv-unified", "-no-kvu"),
    ("--embedding", "--embeddings"),
    ("--spec-draft-device", "--device-draft", "-devd"),
    ("--load-mode", "-lm", "--no-mmap", "--mmap"),
)
"""What the planner decides, or whose want it counts on: each option's spellings (docs/flags.md)."""
_NAMES = frozenset(name for names in _DECIDED for name in names)


def overruling(flags: Sequence[str]) -> tuple[str, ...]:
    """The options among `flags` that decide what the plan decides, as written, each once."""
    named = (flag.partition("=")[0] for flag in flags)
    return tuple(dict.fromkeys(name for name in named if name in _NAMES))


def overruled(flags: Sequence[str]) -> Iterator[Reason]:
    """That they overrule the plan."""
    if names := overruling(flags):
        text = (
            f"its own flags have the last word over what is planned here: {', '.join(names)};"
            " what they change of places, memory and speed is not planned, only learned"
        )
        yield Reason(ReasonKind.FLAGS, text)
