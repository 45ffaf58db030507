"""llama-server's own routes through the daemon: the real fleet leases, the real engine answers."""

import httpx

from scripts.started_daemon import StartedDaemon
from tests.integration.conftest import Start

STORY = {"prompt": "Once upon a time", "n_predict": 8000, "ignore_eos": True, "stream": True}


def test_a_question_does_not_wait_behind_a_long_answer(start: Start) -> None:
    daemon = start(config="[models]\ncontext = 8192\nparallel = 1\n")
    with httpx.Client(base_url=daemon.base, timeout=60, trust_env=False) as client:
        with client.stream("POST", "/completion", json=STORY) as story:
            next(events := story.iter_lines())
            tokens = client.post("/tokenize", json={"content": "Once upon a time"}).json()
            slots = client.get("/slots").json()
            running = running_requests(daemon)
            story.close()
        del events
        after = client.post("/completion", json={"prompt": "Hi", "n_predict": 1}).json()

    assert len(tokens["tokens"]) == 4
    assert [slot["is_processing"] for slot in slots] == [True]
    assert running == 1
    assert after["tokens_predicted"] == 1
    assert daemon.log().count("instance.started") == 1


def test_a_question_loads_the_model_and_its_name_may_be_in_the_path(start: Start) -> None:
    daemon = start(config="[server]\nui = true\n[models]\ncontext = 1024\n")
    with httpx.Client(base_url=daemon.base, timeout=60, trust_env=False) as client:
        name = client.get("/v1/models").json()["data"][0]["id"].removesuffix(":latest")
        page = client.get(f"/upstream/{name}/")
        props = client.get(f"/upstream/{name}/props").json()
        saved = client.post(f"/upstream/{name}/slots/0?action=save", json={"filename": "x"})

    assert page.headers["content-type"].startswith("text/html")
    assert props["model_path"] == name
    assert saved.status_code == 403


def running_requests(daemon: StartedDaemon) -> int:
    """As the daemon counts them."""
    told = httpx.get(f"{daemon.base}/health", trust_env=False).json()
    return int(told["requests_running"])
