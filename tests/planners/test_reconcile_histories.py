"""reconcile through random histories: a simulated machine, callers by chance, a real LeaseBook."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec.structs import replace

from planners.hardware import HOST
from planners.instances.actions import Action, Allow, Move, Refuse, Restart, Start, Stop, Yield
from planners.instances.groups import Group, conflict
from planners.instances.taken import taken
from planners.model import ModelId, ServedModel
from planners.plan import InstanceId, LaunchPlan
from planners.reconcile import reconcile
from planners.settings import ContextPolicy, FleetSettings
from planners.sizes import GIB
from planners.view import InstanceState, Observed, View
from planners.waiting.turns import patience_s
from supervisor.leases.desk import Opening, Waiter
from supervisor.leases.lease import Lease, ModelUnavailable
from supervisor.leases.lease_book import LeaseBook
from tests.fakes.machines import FLEET
from tests.fakes.views import hardware, model, seen, view

ROOM_BYTES = 12 * GIB
STEP_S, STOP_S, LOAD_S, REPLY_S, TURN_S, KEEP_ALIVE_S = 0.5, 0.5, 3.0, 5.0, 6.0, 20.0
MODELS = {
    served.model_id: served
    for served in (
        model("pinned", weights_bytes=GIB, pin=True),
        model("small", weights_bytes=2 * GIB),
        model("middle", weights_bytes=4 * GIB),
        model("large", weights_bytes=7 * GIB),
        model("huge", weights_bytes=9 * GIB),
        model("never", weights_bytes=40 * GIB),
    )
}
OTHERS_TURN_S = TURN_S + REPLY_S + STOP_S + LOAD_S + 3 * STEP_S
"""How long a model holds up those behind it: its turn, its last reply, the change."""
BOUND_S = (len(MODELS) - 2) * OTHERS_TURN_S + TURN_S + LOAD_S
SETTINGS = replace(FLEET, turn_s=TURN_S)


@dataclass
class Simulated:
    """One instance of the simulated machine."""

    observed: Observed
    until_s: float
    """When it is ready, or gone."""


@dataclass
class Machine:
    """What the fleet and its children would do, one step of time after another."""

    chance: Random
    settings: FleetSettings = SETTINGS
    now_s: float = 1000.0
    callers_leave: bool = False
    launched: int = 0
    refused: set[ModelId] = field(default_factory=set)
    served: int = 0
    instances: dict[InstanceId, Simulated] = field(default_factory=dict)
    waiters: list[Waiter] = field(default_factory=list)
    leases: list[tuple[float, Lease]] = field(default_factory=list)
    contexts: dict[ModelId, int] = field(default_factory=dict)
    yielded_s: dict[ModelId, float] = field(default_factory=dict)
    moving: set[ModelId] = field(default_factory=set)
    moved: int = 0
    book: LeaseBook = field(default_factory=lambda: LeaseBook(max_waiting=10_000))

    def view(self) -> View:
        instances = tuple(self._observed(s.observed) for s in self.instances.values())
        held = taken(hardware(), instances).held[HOST]
        told = view(
            *MODELS.values(),
            machine=hardware(available_bytes=ROOM_BYTES - held),
            settings=self.settings,
        )
        return replace(
            told,
            instances=instances,
            demand=self.book.demand(now_s=self.now_s),
            contexts=dict(self.contexts),
            yielded_s=dict(self.yielded_s),
            moving=frozenset(self.moving),
        )

    def step(self) -> None:
        """Half a second: callers come and go, children load and end, the fleet decides."""
        self.now_s += STEP_S
        self._callers()
        self._children()
        for _ in range(20):
            before = self.view()
            actions = reconcile(before, now_s=self.now_s)
            for action in actions:
                self._check(before, action)
                self._apply(action)
            self._check_room()
            if not actions:
                break
        else:
            pytest.fail(f"no end of actions at {self.now_s}: {actions}")
        self._check_waits()

    def _observed(self, observed: Observed) -> Observed:
        instance_id, is_ready = observed.instance_id, observed.state is InstanceState.READY
        return replace(
            observed,
            running=self.book.running(instance_id),
            waiting=self.book.waiting(observed.model_id),
            idle_since_s=self.book.idle_since_s(instance_id) if is_ready else None,
        )

    def _callers(self) -> None:
        for end_s, lease in self.leases[:]:
            if end_s <= self.now_s:
                self.leases.remove((end_s, lease))
                self.book.give_back(lease, now_s=self.now_s)
        if self.chance.random() < 0.35:
            model_id = self.chance.choice(list(MODELS))
            context = self.chance.choice((0, 0, 0, 2048, 4096, 8192))
            if self.settings.context_policy is ContextPolicy.RATCHET:
                self.contexts[model_id] = max(context, self.contexts.get(model_id, 0))
            exact = self.settings.context_policy is ContextPolicy.CLIENT
            self.waiters.append(
                self.book.ask(
                    model_id, caller="a", now_s=self.now_s, context=context, is_exact=exact
                )
            )
        if self.callers_leave and self.waiters and self.chance.random() < 0.2:
            waiter = self.chance.choice(self.waiters)
            if not waiter.granted.done():
                self.waiters.remove(waiter)
                self.book.leave(waiter, now_s=self.now_s)
        self._take_grants()

    def _take_grants(self) -> None:
        for waiter in self.waiters[:]:
            if waiter.granted.done():
                self.waiters.remove(waiter)
                if waiter.granted.exception() is None:
                    end_s = self.now_s + self.chance.uniform(0.1, REPLY_S)
                    self.leases.append((end_s, waiter.granted.result()))
                    self.served += 1

    def _children(self) -> None:
        for instance_id, simulated in list(self.instances.items()):
            observed = simulated.observed
            if observed.state is InstanceState.LOADING and simulated.until_s <= self.now_s:
                self._become_ready(simulated)
            elif observed.state is InstanceState.DRAINING and not self.book.running(instance_id):
                simulated.observed = replace(observed, state=InstanceState.STOPPING)
                simulated.until_s = self.now_s + STOP_S
            elif observed.state is InstanceState.STOPPING and simulated.until_s <= self.now_s:
                self.book.close(instance_id)
                del self.instances[instance_id]
        self._take_grants()

    def _become_ready(self, simulated: Simulated) -> None:
        observed = simulated.observed = replace(
            simulated.observed, state=InstanceState.READY, ready_since_s=self.now_s, load_s=LOAD_S
        )
        self.moving.discard(observed.model_id)
        self.book.open(self._opening(observed), now_s=self.now_s)

    def _opening(self, observed: Observed) -> Opening:
        plan = observed.plan
        return Opening(
            observed.instance_id,
            observed.model_id,
            socket_path=observed.instance_id,
            n_slots=plan.n_parallel,
            context=plan.context,
            embedding=False,
            serves=int(observed.loaded_at or 0),
        )

    def _apply(self, action: Action) -> None:
        match action:
            case Start(plan, key, _, context):
                self._start(plan, key, context)
            case Stop(instance_id) | Yield(instance_id):
                simulated = self.instances[instance_id]
                simulated.observed = replace(simulated.observed, state=InstanceState.DRAINING)
                self.book.shut(instance_id)
                if isinstance(action, Yield):
                    self.yielded_s[simulated.observed.model_id] = self.now_s
            case Move(instance_id, plan, key):
                self._move(instance_id, plan, key)
            case Allow(instance_id, context):
                self.book.allow(instance_id, context, now_s=self.now_s)
                self._take_grants()
            case Refuse(model_id):
                self.refused.add(model_id)
                error = ModelUnavailable(
                    model_id=model_id, reason=action.reason, retry_after_s=action.retry_after_s
                )
                self.book.refuse(model_id, error)
                self._take_grants()
            case Restart():
                pytest.fail("nothing dies here")

    def _start(self, plan: LaunchPlan, key: str, context: int) -> None:
        self.launched += 1
        self.yielded_s.pop(plan.model_id, None)
        observed = replace(
            PLAIN_SEEN,
            instance_id=InstanceId(f"i{self.launched}"),
            model_id=plan.model_id,
            state=InstanceState.LOADING,
            plan=plan,
            launch_key=key,
            keep_alive_s=KEEP_ALIVE_S,
            last_used_s=self.now_s,
            loaded_at=context,  # kept here until it is ready
        )
        self.instances[observed.instance_id] = Simulated(observed, self.now_s + LOAD_S)

    def _move(self, instance_id: InstanceId, plan: LaunchPlan, key: str) -> None:
        """Its replies wait in the line for what takes its place, and go on there."""
        self.moved += 1
        self.moving.add(plan.model_id)
        self.book.shut(instance_id)
        for end_s, lease in self.leases[:]:
            if lease.instance_id == instance_id:
                self.leases.remove((end_s, lease))
                self.book.give_back(lease, now_s=self.now_s)
                asked = self.book.ask(plan.model_id, caller="a", now_s=self.now_s, after=lease)
                self.waiters.append(asked)
        self.book.close(instance_id)
        del self.instances[instance_id]
        self._start(plan, key, 0)

    def _check(self, before: View, action: Action) -> None:
        by_id = {i.instance_id: i for i in before.instances}
        if isinstance(action, Move):
            moved = by_id[action.instance_id]
            assert moved.running
            assert action.plan.context > moved.plan.context
        if isinstance(action, Stop | Yield):
            gone = by_id[action.instance_id]
            assert gone.state is InstanceState.READY
            is_for_context = isinstance(action, Stop) and action.finishes
            assert is_for_context or gone.model_id != "pinned"
            assert is_for_context or isinstance(action, Yield) or not gone.running
        if isinstance(action, Start):
            assert action.plan.model_id not in {i.model_id for i in before.instances}

    def _check_room(self) -> None:
        plans = [s.observed.plan for s in self.instances.values()]
        assert sum(plan.bytes_on(HOST) for plan in plans) <= ROOM_BYTES
        assert "never" not in {plan.model_id for plan in plans}
        for one, other in pairs([MODELS[plan.model_id] for plan in plans]):
            assert conflict(one, other, self.settings.groups) is None

    def _check_waits(self) -> None:
        told = self.view()
        has_turn = (InstanceState.LOADING, InstanceState.READY)
        present = {i.model_id for i in told.instances if i.state in has_turn}
        bound_s = BOUND_S + (len(MODELS) * KEEP_ALIVE_S if self.callers_leave else 0)
        for model_id in told.demand.keys() - present - {ModelId("never")}:
            assert patience_s(told, model_id, now_s=self.now_s) <= bound_s, model_id


PLAIN_SEEN = seen(MODELS[ModelId("small")])


def pairs(items: list[ServedModel]) -> Iterator[tuple[ServedModel, ServedModel]]:
    return ((a, b) for n, a in enumerate(items) for b in items[n + 1 :])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param({}, id="memory"),
        pytest.param({"callers_leave": True}, id="callers leave"),
        pytest.param({"settings": replace(SETTINGS, max_loaded=2)}, id="two at once"),
        pytest.param(
            {"settings": replace(SETTINGS, context_policy=ContextPolicy.CLIENT)}, id="client"
        ),
        pytest.param(
            {
                "settings": replace(
                    SETTINGS, groups=(Group("g", ("small", "middle"), exclusive=True, alone=False),)
                )
            },
            id="a group",
        ),
    ],
)
async def test_whatever_happens_nobody_is_cut_starved_or_given_what_is_not_there(
    machine: dict[str, object], seed: int
) -> None:
    simulated = Machine(Random(seed), **machine)  # type: ignore[arg-type]

    for _ in range(250):
        simulated.step()

    assert simulated.served > 20
    is_client = simulated.settings.context_policy is ContextPolicy.CLIENT
    assert bool(simulated.moved) is not is_client
    assert simulated.refused <= {ModelId("never")}
