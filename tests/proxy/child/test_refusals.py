"""proxy.child.refusals, of the real engine's own words."""

from pathlib import Path

import pytest

from tests.fakes.real_engine import engine

DEEP = 600  # below what Python's own reader follows


@pytest.mark.llama
async def test_a_refusal_that_says_all_again_is_the_callers_fault_and_short(
    tmp_path: Path,
) -> None:
    tools = "[" * DEEP + "]" * DEEP
    body = f'{{"model":"smollm2","messages":[{{"role":"user","content":"Hi"}}],"tools":{tools}}}'
    async with engine(tmp_path) as (_, at):
        reply = await at.client.post("/v1/chat/completions", content=body)

    assert reply.status_code == 400
    assert "characters in all" in reply.json()["error"]["message"]
    assert len(reply.content) < 20_000
