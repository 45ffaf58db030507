"""What one request took of its child, by the child's own word."""

import msgspec

LEAST_DECODE = 16  # tokens; fewer tell more of the first one's latency
LEAST_PROMPT = 64


class Usage(msgspec.Struct, frozen=True):
    """One finished request: tokens, and the seconds that they took."""

    prompt_tokens: int
    prompt_s: float
    decode_tokens: int
    decode_s: float

    @property
    def decode_tokens_per_s(self) -> float | None:
        """None where it was too short to tell."""
        is_telling = self.decode_tokens >= LEAST_DECODE and self.decode_s > 0
        return self.decode_tokens / self.decode_s if is_telling else None

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """None where it was too short to tell."""
        is_telling = self.prompt_tokens >= LEAST_PROMPT and self.prompt_s > 0
        return self.prompt_tokens / self.prompt_s if is_telling else None
