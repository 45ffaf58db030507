"""Counts prompts as their child does, and refuses what is over the context of a request.

The child counts the tokens; it is asked only where the prompt is so long that it may be too long.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from planners.model import ServedModel
from proxy.door import Door
from proxy.errors import InfillTooLong, NumCtxExceeded, PromptTooLong
from proxy.forward import ask
from supervisor.leases.lease import Lease


class _Rendered(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: tuple[int, ...]


RENDERED = msgspec.json.Decoder(_Rendered)
"""Of /apply-template's reply."""
TOKENS = msgspec.json.Decoder(_Tokens)
"""Of /tokenize's reply."""


async def rendered(door: Door, lease: Lease, chat: bytes) -> str:
    """A chat's body as the model reads it. Raises ChildRefused, UpstreamError."""
    return (await ask(door, lease, RENDERED, target=b"/apply-template", body=chat)).prompt


async def token_ids(
    door: Door, lease: Lease, text: str, *, add_special: bool = True
) -> tuple[int, ...]:
    """A text as the model reads it. Raises ChildRefused, UpstreamError."""
    told = {"content": text, "add_special": add_special, "parse_special": True}
    body = msgspec.json.encode(told)
    return (await ask(door, lease, TOKENS, target=b"/tokenize", body=body)).tokens


class Prompt(msgspec.Struct, frozen=True):
    """What the child is to read: a chat to be rendered, or texts and token ids."""

    chat: bytes = b""
    """A body with `messages`; empty where there is none."""
    texts: tuple[str, ...] = ()
    n_ids: int = 0
    begins: bool = True
    """Whether the first text is a prompt's beginning, where the model may have a token for that."""

    @classmethod
    def of(cls, told: Mapping[str, object]) -> "Prompt":
        """The prompt in a body for one of the child's completion routes."""
        if "messages" in told:
            return cls(chat=msgspec.json.encode(told))
        prompt = told.get("prompt", "")
        parts = prompt if isinstance(prompt, list) else [prompt]
        if len(parts) == 1 and isinstance(parts[0], list):
            parts = parts[0]  # one prompt, in an array of its own
        parts = [*parts, told.get("input_prefix", ""), told.get("input_suffix", "")]
        ids = [part for part in parts if not isinstance(part, str)]
        texts = tuple(part for part in parts if isinstance(part, str) and part)
        return cls(texts=texts, n_ids=len(ids), begins=isinstance(parts[0], str))

    async def tokens_over(self, door: Door, lease: Lease, *, n_ctx: int) -> int | None:
        """How many tokens it has, where that is more than n_ctx. Raises what the child refuses."""
        texts = (await rendered(door, lease, self.chat),) if self.chat else self.texts
        if self.n_ids + sum(len(text.encode()) for text in texts) <= n_ctx:
            return None  # a token is a byte at least
        n_prompt = self.n_ids
        for at, text in enumerate(texts):
            add_special = self.begins and at == 0
            n_prompt += len(await token_ids(door, lease, text, add_special=add_special))
        return n_prompt if n_prompt > n_ctx else None


class Bound(msgspec.Struct, frozen=True):
    """One prompt, and the most tokens it may have."""

    door: Door
    model: ServedModel
    name: str
    """The model as its caller calls it."""
    prompt: Prompt
    n_ctx: int | None
    """None is what is loaded."""
    place: tuple[int, int] | None = None
    """Of several prompts: its number, from 1, and how many there are."""

    async def check(self, lease: Lease) -> None:
        """Raises PromptTooLong, NumCtxExceeded, ChildRefused, UpstreamError."""
        if self.n_ctx is not None and self.n_ctx < lease.context:
            n_prompt = await self._tokens_over(lease, self.n_ctx)
            if n_prompt is not None:
                raise NumCtxExceeded(
                    model=self.name, n_prompt=n_prompt, n_ctx=self.n_ctx, n_loaded=lease.context,
                    place=self.place,
                )  # fmt: skip
        elif self.place is not None:  # one alone that is too long is refused by the child itself
            n_prompt = await self._tokens_over(lease, lease.context - 1)
            if n_prompt is not None:
                raise PromptTooLong(
                    model=self.name, n_prompt=n_prompt, n_ctx=lease.context, place=self.place
                )

    async def _tokens_over(self, lease: Lease, n_ctx: int) -> int | None:
        if self._is_surely_short(n_ctx):
            return None
        return await self.prompt.tokens_over(self.door, lease, n_ctx=n_ctx)

    def _is_surely_short(self, n_ctx: int) -> bool:
        """Whether what is sent and what a template may add are fewer bytes than n_ctx."""
        added = len((self.model.info.chat_template or "").encode()) if self.prompt.chat else 0
        sent = len(self.prompt.chat) + sum(len(text.encode()) for text in self.prompt.texts)
        return self.prompt.n_ids + sent + added <= n_ctx


def bounds_of(
    door: Door, model: ServedModel, name: str, prompts: Sequence[Prompt], n_ctx: int | None
) -> list[Bound]:
    """Each of a request's prompts with its bound; of several each knows its place."""
    count = len(prompts)
    return [
        Bound(door, model, name, prompt, n_ctx, place=(at, count) if count > 1 else None)
        for at, prompt in enumerate(prompts, 1)
    ]


def bounding(
    door: Door, model: ServedModel, name: str, prompts: Sequence[Prompt], n_ctx: int | None
) -> Callable[[Lease], Awaitable[None]]:
    """What holds each of a request's prompts to its context, one after another."""
    bounds = bounds_of(door, model, name, prompts, n_ctx)

    async def check(lease: Lease) -> None:
        for bound in bounds:
            await bound.check(lease)

    return check


class Infill(msgspec.Struct, frozen=True):
    """What stands around a gap.

    Of the prefix llama-server (b10434, format_prompt_infill) reads the end, three quarters of its
    batch, and of the suffix the beginning, a quarter less two tokens and those of the prompt, and
    says nothing of the rest.
    """

    prefix: str
    suffix: str
    prompt: Prompt = Prompt()
    """What the gap is to begin with."""

    async def check(self, door: Door, lease: Lease) -> None:
        """Raises InfillTooLong where a part would not be read, ChildRefused, UpstreamError."""
        for side, n_tokens, most in await self._over(door, lease):
            raise InfillTooLong(model=lease.model_id, side=side, n_prompt=n_tokens, most=most)

    async def n_dropped(self, door: Door, lease: Lease) -> int:
        """How many tokens would not be read. Raises ChildRefused, UpstreamError."""
        return sum(n_tokens - most for _, n_tokens, most in await self._over(door, lease))

    async def _over(self, door: Door, lease: Lease) -> list[tuple[str, int, int]]:
        """Each side that is too long: its name, its tokens, and the most that are read."""
        n_batch = _n_batch(door, lease)
        if n_batch is None:
            return []  # its child is gone, which what is sent next will tell
        quarter = n_batch // 4
        n_told = await self.prompt.tokens_over(door, lease, n_ctx=-1) or 0
        over: list[tuple[str, int, int]] = []
        for side, text, most in (
            ("prefix", self.prefix, 3 * quarter),
            ("suffix", self.suffix, max(0, quarter - 2 - n_told)),
        ):
            if len(text.encode()) > most:
                n_tokens = len(await token_ids(door, lease, text, add_special=False))
                over += [(side, n_tokens, most)] if n_tokens > most else []
        return over


def _n_batch(door: Door, lease: Lease) -> int | None:
    running = door.service.running()
    return next((s.plan.n_batch for s in running if s.instance_id == lease.instance_id), None)


async def located(
    door: Door, lease: Lease, inputs: Sequence[object], exc: PromptTooLong
) -> PromptTooLong:
    """`exc`, told of one of several texts to embed, with which of them it is; else as it is."""
    if len(inputs) < 2:
        return exc
    for number, told in enumerate(inputs, 1):
        prompt = Prompt.of({"prompt": told})
        n_prompt = await prompt.tokens_over(door, lease, n_ctx=exc.n_ctx)
        if n_prompt is not None:
            return exc.at((number, len(inputs)), n_prompt=n_prompt)
    return exc
