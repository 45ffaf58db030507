"""`make bench-migration`: what callers see of moves and of kills, against undisturbed streams.

Callers stream in all slots, in dialects and forms drawn at random, and in their middle the model is
moved, or its process killed. Texts are compared with those of the same requests, undisturbed. All
are greedy, so each is to be equal where the math stays. A move hits several streams at once, and
each counts. `--ledger FILE` keeps rounds: a campaign that was broken off goes on where it was. Last
comes a line for each bar, PASS or FAIL.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.migration import cost, pause, worlds
from bench.migration.account import Account, Round, read_ledger, write_ledger
from bench.migration.rounds import Style, Undisturbed, played
from bench.migration.streams import Ended
from bench.migration.worlds import World


@dataclass(frozen=True, slots=True)
class Campaign:
    """Rounds until so many streams were hit."""

    style: Style
    world: Callable[[], AbstractContextManager[World]]
    n_hit: int
    told: str


CAMPAIGNS = {
    campaign.style.what: campaign
    for campaign in (
        Campaign(Style("moves"), worlds.on_the_processor, 200, "contexts and slots change"),
        Campaign(
            Style("beside", n_tokens=400, with_others=False), worlds.side_by_side, 24,
            "the next process loads beside the last one",
        ),
        Campaign(
            Style("rpc", n_tokens=64, with_others=False), worlds.over_servers, 40,
            "2 and 3 RPC servers",
        ),
        Campaign(
            Style("vulkan", n_tokens=32, callers=2, keeps_math=False, with_others=False),
            worlds.on_vulkan, 20, "between the processor and software Vulkan",
        ),
        Campaign(
            Style("mixed", n_tokens=200, callers=3, is_mixed=True),
            worlds.with_spare_slots, 24, "with idle conversations and late callers",
        ),
        Campaign(
            Style("windows", n_tokens=400, with_others=False), worlds.with_windows, 16,
            "of sliding windows",
        ),
        Campaign(
            Style("recurrent", n_tokens=400, callers=2, with_others=False), worlds.recurrent, 8,
            "a recurrent model",
        ),
        Campaign(
            Style("hybrid", n_tokens=400, callers=2, with_others=False), worlds.hybrid, 8,
            "a recurrent model with some attention",
        ),
        Campaign(Style("kills", kills=True), worlds.on_the_processor, 200, "processes killed"),
    )
}  # fmt: skip


def main() -> None:
    """Parse, run, print; exit status 1 where a campaign is not good."""
    parser = argparse.ArgumentParser(prog="bench.migration", description=__doc__)
    for what, campaign in CAMPAIGNS.items():
        told = f"streams to hit, {campaign.told} ({campaign.n_hit} if none of these is given)"
        parser.add_argument(f"--{what}", type=int, metavar="N", help=told)
    parser.add_argument("--pause", type=int, metavar="N", help="rounds of pauses against a restart")
    parser.add_argument("--cost", action="store_true", help="what it costs where nothing happens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="go on with the rounds in it")
    asked = parser.parse_args()
    wanted = {what: getattr(asked, what) for what in CAMPAIGNS}
    is_all = not any((*wanted.values(), asked.pause, asked.cost))
    bars: list[str] = []
    known: Known = {}
    for what, campaign in CAMPAIGNS.items():
        if n_hit := campaign.n_hit if is_all else wanted[what]:
            account = measured(what, n_hit=n_hit, seed=asked.seed, ledger=asked.ledger, known=known)
            print(account.text(), flush=True)
            bars.append(account.bar(n_hit))
    if n_rounds := pause.ROUNDS if is_all else asked.pause:
        pauses = pause.measured(n_rounds)
        print(pause.report(pauses), flush=True)
        bars += [each.bar() for each in pauses]
    if is_all or asked.cost:
        costs = cost.measured()
        print(cost.report(costs), flush=True)
        bars.append(cost.bar(costs))
    print("\n".join(bars), flush=True)
    sys.exit(any(not bar.startswith("PASS") for bar in bars))


Known = dict[tuple[Callable[[], AbstractContextManager[World]], int], dict[str, list[Ended]]]
"""Undisturbed replies of a world, of so many tokens: campaigns in the same one ask once."""


def measured(
    what: str, *, n_hit: int, seed: int, ledger: Path | None = None, known: Known | None = None
) -> Account:
    """What a daemon in a temporary folder showed, with what is in the ledger already."""
    campaign = CAMPAIGNS[what]
    rounds = read_ledger(ledger, what, seed) if ledger is not None else []
    if sum(each.hit for each in rounds) < n_hit:
        undisturbed = ({} if known is None else known).setdefault(
            (campaign.world, campaign.style.n_tokens), {}
        )
        for done in _rounds(campaign, undisturbed, seed=seed, first=len(rounds)):
            rounds.append(done)
            if ledger is not None:
                write_ledger(ledger, done)
            if sum(each.hit for each in rounds) >= n_hit:
                break
    return Account(what, tuple(rounds), campaign.style.keeps_math)


def _rounds(
    campaign: Campaign, undisturbed: dict[str, list[Ended]], *, seed: int, first: int
) -> Iterator[Round]:
    with campaign.world() as world:
        if first and not campaign.style.kills:
            world.move(world.moves[(first - 1) % len(world.moves)])
        alone = Undisturbed(world, campaign.style, undisturbed)
        number = first
        while True:
            yield played(campaign.style, world, alone, seed=seed, number=number)
            number += 1


if __name__ == "__main__":
    main()
