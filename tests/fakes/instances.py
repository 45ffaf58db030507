"""An instance of a fleet as it is seen from outside, for those who say what it runs. Synthetic."""

from msgspec.structs import replace

from planners.plan import InstanceId, LaunchPlan
from planners.view import InstanceState, Observed


def observed(plan: LaunchPlan, /, **facts: object) -> Observed:
    """Ready and idle, without a history, but for the `facts`."""
    plain = Observed(
        instance_id=InstanceId(f"{plan.model_id}-1"),
        model_id=plan.model_id,
        state=InstanceState.READY,
        plan=plan,
        launch_key="1",
        pid=None,
        running=0,
        waiting=0,
        keep_alive_s=300.0,
        last_used_s=0.0,
        idle_since_s=None,
        expires_at=None,
        loaded_at=None,
        load_s=None,
        load_progress=None,
        measured=(),
        decode_tokens_per_s=None,
        prompt_tokens_per_s=None,
        restarts=0,
        cause=None,
        retry_at_s=None,
    )
    return replace(plain, **facts)
