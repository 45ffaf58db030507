"""How fast an instance is, by the exchanges that it served."""

from planners.lessons.usage import Usage

WEIGHT = 0.3  # of the newest exchange in the moving average of tokens/s


class Pace:
    """Moving averages; None until something was served."""

    def __init__(self) -> None:
        self.decode_tokens_per_s: float | None = None
        self.prompt_tokens_per_s: float | None = None

    def served(self, usage: Usage) -> None:
        """Take one exchange in. One token shows no rate: there is no time between two."""
        if usage.decode_s > 0 and usage.decode_tokens > 1:
            newest = usage.decode_tokens / usage.decode_s
            self.decode_tokens_per_s = _averaged(self.decode_tokens_per_s, newest)
        if usage.prompt_s > 0 and usage.prompt_tokens > 0:
            newest = usage.prompt_tokens / usage.prompt_s
            self.prompt_tokens_per_s = _averaged(self.prompt_tokens_per_s, newest)


def _averaged(average: float | None, newest: float) -> float:
    return newest if average is None else average + WEIGHT * (newest - average)
