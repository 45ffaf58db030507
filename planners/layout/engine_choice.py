"""Why a launch is another engine's than the first one's, which stands first for a reason. Pure."""

from collections.abc import Iterator

from planners.layout.placed import Placed
from planners.reasons import Reason, ReasonKind
from planners.speed import NOTICED, format_rate


def engine_reason(placed: Placed) -> Iterator[Reason]:
    """What the chosen engine has over the one that it was preferred to."""
    over = placed.passed_over
    if over is None or over.engine.backend == placed.engine.backend:
        return
    gains = ", ".join(_gains(placed, over))
    names = f"{placed.engine.backend} rather than {over.engine.backend}"
    yield Reason(ReasonKind.ENGINE, f"{names}, which has less room here: {gains}")


def _gains(placed: Placed, over: Placed) -> Iterator[str]:
    decode, other = placed.speed.decode_tokens_per_s, over.speed.decode_tokens_per_s
    if decode > other * NOTICED:
        yield f"decode at {format_rate(decode)} rather than {format_rate(other)} tokens/s"
    prompt, other = placed.speed.prompt_tokens_per_s, over.speed.prompt_tokens_per_s
    if prompt > other * NOTICED:
        yield f"prompts at {format_rate(prompt)} rather than {format_rate(other)} tokens/s"
    context, least = placed.shape.n_ctx_seq, over.shape.n_ctx_seq
    if context > least:
        yield f"{context} rather than {least} tokens of context"
