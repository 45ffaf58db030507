from msgspec.structs import replace

from planners.instances.purposes import for_embeddings, with_embedders
from planners.instances.twins import shared
from planners.model import ModelId
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from tests.fakes.machines import CUDA, RULES, machine, model_info, nvidia, served


def test_a_text_model_is_launched_apart_for_embeddings() -> None:
    chat = served()

    vectors = for_embeddings(chat)

    assert vectors is not None
    assert vectors.model_id == f"{chat.model_id}+embeddings"
    assert vectors.info.is_embedding
    assert vectors.file_key == chat.file_key
    assert vectors.info.digest != chat.info.digest


def test_its_context_is_not_the_chats() -> None:
    chat = served()
    chat = replace(chat, settings=replace(chat.settings, context=32768, pin=True))

    vectors = for_embeddings(chat)

    assert vectors is not None
    assert not vectors.settings.pin
    card = machine(nvidia(0, 24))
    plan = plan_launch(vectors, hardware=card, engines=(CUDA,), rules=RULES, promised={})
    assert isinstance(plan, LaunchPlan)
    assert (plan.embedding, plan.pooling) == (True, "last")
    assert plan.context == plan.n_ubatch == 2048


def test_a_model_made_for_embeddings_is_launched_as_it_is() -> None:
    encoder = served(model_info(pooling="mean"))

    assert for_embeddings(encoder) is encoder


def test_what_ranks_or_translates_gives_no_vectors() -> None:
    assert for_embeddings(served(model_info(pooling="rank"))) is None
    assert for_embeddings(served(replace(model_info(), architecture="t5"))) is None


def test_two_names_for_one_file_share_the_launch_for_embeddings() -> None:
    one, two = (replace(served(), model_id=ModelId(name)) for name in ("one", "two"))

    processes = shared(with_embedders({one.model_id: one, two.model_id: two}))

    assert sorted(processes.models) == ["one", "one+embeddings"]
    assert processes.host(ModelId("two+embeddings")) == "one+embeddings"


def test_a_file_of_that_name_goes_before_a_launch_for_embeddings() -> None:
    chat = replace(served(), model_id=ModelId("a"))
    other = replace(served(), model_id=ModelId("a+embeddings"), file_key="2")

    models = with_embedders({chat.model_id: chat, other.model_id: other})

    assert models[other.model_id] is other
