"""proxy.admin.models: what is on offer, as flat values."""

from msgspec.structs import replace

from planners.model import ModelId
from proxy.admin.models import models_report
from tests.fakes.admin_service import READY
from tests.fakes.fleet_of_one import model_info, served_model


def test_a_model_has_the_state_of_its_instance_and_what_it_can_do() -> None:
    served = served_model(model_id="qwen")
    seeing = replace(served, settings=replace(served.settings, mmproj_path="/eyes"))
    embedding = served_model(model_id="nomic", info=model_info(pooling="mean"))

    report = models_report((seeing, embedding), broken=(), instances=(READY,), dirs=())

    assert [model.state for model in report.models] == ["ready", None]
    assert "vision" in report.models[0].capabilities
    assert report.models[1].capabilities == ("embedding",)


def test_a_name_that_shares_a_process_has_its_state() -> None:
    one = replace(served_model(), model_id=READY.model_id)
    other = replace(one, model_id=ModelId("zz-other-name"))

    report = models_report((other, one), broken=(), instances=(READY,), dirs=())

    assert [model.state for model in report.models] == ["ready", "ready"]
