"""Hand-made views of a fleet: models, their instances, who waits for them. Synthetic."""

from msgspec.structs import replace

from planners.backends import Engine
from planners.hardware import Device, DeviceId, HardwareProfile
from planners.instances.actions import Action
from planners.launch_key import launch_key
from planners.model import ModelId, ServedModel
from planners.placement import plan_launch
from planners.plan import InstanceId, LaunchPlan
from planners.reconcile import reconcile
from planners.settings import FleetSettings
from planners.sizes import GIB, MIB
from planners.view import Demand, InstanceState, Observed, View
from tests.fakes import machines
from tests.fakes.instances import observed
from tests.fakes.machines import FLEET, PLAIN, engine, machine, model_info, served

NOW_S = 1000.0
CARD = DeviceId("pci:0000:01:00.0")

RULES = replace(machines.RULES, context=2048, parallel=1)
ENGINE = engine("cpu")


def hardware(
    *, available_bytes: int = 16 * GIB, devices: tuple[Device, ...] = ()
) -> HardwareProfile:
    empty = machine(*devices, host_gib=16)
    return replace(empty, host=replace(empty.host, available_bytes=available_bytes))


def model(name: str, *, weights_bytes: int = GIB, pin: bool = False) -> ServedModel:
    info = model_info(n_layer=4, layer_bytes=weights_bytes // 4)
    info = replace(info, input_bytes=MIB, output_bytes=MIB, n_embd=512, n_vocab=32000)
    return replace(
        served(info),
        model_id=ModelId(name),
        path=f"/models/{name}.gguf",
        settings=replace(PLAIN, pin=pin),
    )


A, B = model("a"), model("b")
WAITING = Demand(waiting=1, oldest_wait_s=1.0)


def planned(served: ServedModel, machine: HardwareProfile | None = None) -> LaunchPlan:
    plan = plan_launch(
        served, hardware=machine or hardware(), engines=(ENGINE,), rules=RULES, promised={}
    )
    assert isinstance(plan, LaunchPlan)
    return plan


def seen(
    served: ServedModel, state: InstanceState = InstanceState.READY, **facts: object
) -> Observed:
    is_idle = state is InstanceState.READY
    told = {
        "instance_id": InstanceId(f"i-{served.model_id}"),
        "state": state,
        "launch_key": launch_key(served, RULES),
        "running": 0 if is_idle else 1,
        "last_used_s": NOW_S - 10,
        "idle_since_s": NOW_S - 10 if is_idle else None,
        "load_s": 1.0,
    }
    return observed(planned(served), **{**told, **facts})


def busy(served: ServedModel) -> Observed:
    return seen(served, running=1, idle_since_s=None)


def view(
    *models: ServedModel,
    instances: tuple[Observed, ...] = (),
    waiting: tuple[ServedModel, ...] = (),
    machine: HardwareProfile | None = None,
    engines: tuple[Engine, ...] | None = (ENGINE,),
    settings: FleetSettings = FLEET,
) -> View:
    waiters = {served.model_id for served in waiting}
    return View(
        models={served.model_id: served for served in models},
        instances=tuple(replace(i, waiting=1) if i.model_id in waiters else i for i in instances),
        demand=dict.fromkeys(waiters, WAITING),
        hardware=machine or hardware(),
        engines=engines,
        rules=RULES,
        settings=settings,
    )


def actions(world: View) -> tuple[Action, ...]:
    """What a pass over the world asks for."""
    return reconcile(world, now_s=NOW_S)
