"""What callers asked for that outlasts their requests: how long to keep a model, how much context.

Settings of the operator are the catalogue's.
"""

from planners.model import ModelId, ServedModel
from planners.settings import ContextPolicy, PlacementRules
from supervisor.records.kept_contexts import KeptContexts

MAX_CONTEXT = 1 << 31  # tokens of a model that does not say what it was trained for


class Wishes:
    """Per model, by the name under which it runs."""

    def __init__(self, contexts: KeptContexts) -> None:
        self._keep_alive_s: dict[ModelId, float] = {}
        self._contexts = contexts

    def keep_alive(self, model_id: ModelId, keep_alive_s: float) -> None:
        """Remember what a caller wished."""
        self._keep_alive_s[model_id] = keep_alive_s

    def keep_alive_s(self, served: ServedModel) -> float:
        """How long to keep the model after its last request."""
        return self._keep_alive_s.get(served.model_id, served.settings.keep_alive_s)

    def forget_keep_alive(self, model_id: ModelId) -> None:
        """The wish ends with the instance."""
        self._keep_alive_s.pop(model_id, None)

    def context(
        self,
        served: ServedModel,
        asked: int | None,
        *,
        policy: ContextPolicy,
        rules: PlacementRules,
    ) -> int:
        """Tokens to wait for, where a request asks for `asked`; 0 is whatever there is.

        Never more than the model was trained for. Remembered where the policy is to ratchet.
        """
        if asked is None or asked <= 0 or policy is ContextPolicy.FIXED:
            return 0
        wanted = min(asked, served.info.n_ctx_train or MAX_CONTEXT)
        if policy is ContextPolicy.CLIENT:
            return max(wanted, served.settings.context or rules.context or 0)
        self._contexts.asked(served.model_id, wanted)
        return wanted
