"""Names that mean one file launched in one way: they share a process. Pure."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from planners.model import ModelId, ServedModel


class Shared(Struct, frozen=True):
    """The models as the fleet runs them: one for all names that would be launched alike."""

    models: Mapping[ModelId, ServedModel]
    """By the first of their names; pinned if one of them is, kept as long as any of them."""
    hosts: Mapping[ModelId, ModelId]
    """Every name that another one stands for → that one."""

    def host(self, model_id: ModelId) -> ModelId:
        """The name under which the model runs."""
        return self.hosts.get(model_id, model_id)


def shared(models: Mapping[ModelId, ServedModel]) -> Shared:
    """Models by the process that they would have."""
    kept: dict[ModelId, ServedModel] = {}
    hosts: dict[ModelId, ModelId] = {}
    first: dict[object, ModelId] = {}
    for model_id in sorted(models):
        served = models[model_id]
        settings = replace(served.settings, keep_alive_s=0.0, pin=False)
        launch = (served.file_key, served.info.pooling, settings)
        host = first.setdefault(launch, model_id)
        if host == model_id:
            kept[model_id] = served
        else:
            hosts[model_id] = host
            kept[host] = _joined(kept[host], served)
    return Shared(kept, hosts)


def _joined(host: ServedModel, twin: ServedModel) -> ServedModel:
    settings = replace(
        host.settings,
        pin=host.settings.pin or twin.settings.pin,
        keep_alive_s=max(host.settings.keep_alive_s, twin.settings.keep_alive_s),
    )
    aliases = (*host.aliases, twin.model_id, *twin.aliases)
    return replace(host, settings=settings, aliases=aliases)
