"""The proxy on a real port of the loopback, in the real server, for as long as a block lasts."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ssl import SSLContext

import httpx

from proxy.app import ROUTES, build_app
from proxy.child.upstream import UpstreamPools
from proxy.door import DoorSettings, Traces
from proxy.edge.crowd import Crowd
from proxy.edge.protocol import PATIENT, Patience
from proxy.edge.server import serve
from proxy.service import Service
from proxy.telemetry.metrics import Metrics
from supervisor.records.event_counts import EventCounts
from supervisor.store.keeper import StoreKeeper
from tests.fakes.kept_store import kept_store

SETTINGS = DoorSettings(
    max_body_bytes=1 << 20,
    origins=(),
    listen_is_loopback=True,
    ui=False,
    version="0.24.0",
    serves_metrics=True,
)


def metrics_of(service: Service) -> Metrics:
    """New metrics, which know of no event."""
    return Metrics(service, EventCounts(), version="1.2.3", routes=ROUTES)


@dataclass(frozen=True, slots=True)
class Served:
    """Where it listens, and a client for it."""

    url: str
    port: int
    client: httpx.AsyncClient
    pools: UpstreamPools
    stop: asyncio.Event
    metrics: Metrics


@asynccontextmanager
async def serving(
    service: Service,
    *,
    settings: DoorSettings = SETTINGS,
    drain_s: Callable[[], float] = lambda: 0.2,
    patience: Patience = PATIENT,
    traces: Callable[[Metrics], Traces] | None = None,
    crowd: Crowd | None = None,
    tls: SSLContext | None = None,
    kernel_bytes: int | None = None,
    is_parting: bool = False,
    store: StoreKeeper | None = None,
) -> AsyncIterator[Served]:
    """Serves `service`, and `store`, else an empty one; ends with a drain.

    `kernel_bytes` is what waits in a socket to be read.
    """
    metrics = metrics_of(service)
    listener = socket.socket()
    if kernel_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel_bytes)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    port = listener.getsockname()[1]
    stop, started = asyncio.Event(), asyncio.Event()
    async with (
        UpstreamPools(connections_per_child=8) as pools,
        kept_store(service, store) as kept,
        asyncio.TaskGroup() as tasks,
    ):
        traced = traces(metrics) if traces else None
        app = build_app(
            service, pools, settings, metrics, store=kept, traces=traced, is_parting=is_parting
        )
        door = serve(
            app,
            (listener,),
            stop=stop,
            started=started,
            drain_s=drain_s,
            patience=patience,
            crowd=crowd,
            tls=tls,
        )
        tasks.create_task(door)
        async with asyncio.timeout(10):
            await started.wait()
        url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=150, trust_env=False) as client:
                yield Served(url, port, client, pools, stop, metrics)
        finally:
            stop.set()
