"""Both loops, real sockets; the child is a few scripted lines per connection."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.child.connection import ALWAYS_READY
from proxy.child.upstream import UpstreamPools
from proxy.errors import UpstreamBroken, UpstreamError, UpstreamGone

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Script = Callable[[Reader, Writer], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SOON_S = 5.0


class Child:
    """A socket on which the nth connection plays the nth script, the last one for all after it."""

    def __init__(self, *scripts: Script) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self._scripts = scripts

    async def serve(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            self.left.set()
        finally:
            writer.close()
            self.tasks.discard(task)

    async def request(self, reader: Reader) -> bytes:
        """Reads one request and gives its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line[15:])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        body = await reader.readexactly(size)
        self.requests.append(head + body)
        return body


def replying(child: "list[Child]", *replies: bytes) -> Script:
    """A script that answers each request with the next reply, then closes."""

    async def script(reader: Reader, writer: Writer) -> None:
        for reply in replies:
            await child[0].request(reader)
            writer.write(reply)
            await writer.drain()

    return script


@asynccontextmanager
async def listening(
    path: Path, make: Callable[[list[Child]], tuple[Script, ...]]
) -> AsyncIterator[Child]:
    """A child at `path`."""
    box: list[Child] = []
    child = Child(*make(box))
    box.append(child)
    server = await asyncio.start_unix_server(child.serve, path, limit=1 << 20)
    async with asyncio.timeout(30):
        try:
            yield child
        finally:
            server.close()
            for task in tuple(child.tasks):
                task.cancel()


async def fetch(pools: UpstreamPools, path: Path, body: bytes = b"{}") -> tuple[int, bytes]:
    """Status and body of one exchange."""
    async with pools.request(str(path), method=b"POST", target=b"/x", body=(body,)) as response:
        return response.status, await response.read(limit_bytes=1 << 30)


async def listen_in(pools: UpstreamPools, path: Path, hear: Callable[[bytes], None]) -> None:
    """Hands each chunk of one reply to `hear`."""
    async with pools.request(str(path), method=b"POST", target=b"/") as response:
        async for chunk in response.chunks():
            hear(chunk)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "child.sock"


@pytest.fixture
async def pools() -> AsyncIterator[UpstreamPools]:
    async with UpstreamPools(connections_per_child=8) as pools:
        yield pools


async def test_a_request_is_sent_as_it_was_given(pools: UpstreamPools, path: Path) -> None:
    async with (
        listening(path, lambda c: (replying(c, OK),)) as child,
        pools.request(
            str(path), method=b"POST", target=b"/v1/x", headers=((b"A", b"b"),), body=(b"12", b"3")
        ) as response,
    ):
        body = await response.read(limit_bytes=100)

    assert (response.status, body) == (200, b"hello")
    assert child.requests == [
        b"POST /v1/x HTTP/1.1\r\nHost: child\r\nA: b\r\nContent-Length: 3\r\n\r\n123"
    ]


async def test_connections_are_used_again(pools: UpstreamPools, path: Path) -> None:
    async with listening(path, lambda c: (replying(c, OK, OK, OK),)) as child:
        replies = [await fetch(pools, path) for _ in range(3)]

    assert replies == [(200, b"hello")] * 3
    assert child.connections == 1


def sized(body: bytes, *, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: %d\r\n%b\r\n%b" % (len(body), more, body)


async def test_replies_headed_like_the_one_before_are_read_as_any_other(
    pools: UpstreamPools, path: Path
) -> None:
    bodies = (b"one", b"three", b"", b"HTTP/1.1 200 OK\r\n\r\n", b"three")
    told: list[tuple[int, bytes, bytes, bytes]] = []
    async with listening(path, lambda c: (replying(c, *map(sized, bodies)),)) as child:
        for _ in bodies:
            async with pools.request(str(path), method=b"POST", target=b"/") as response:
                body = await response.read(limit_bytes=100)
                length, a = response.header(b"content-length"), response.header(b"a")
                told.append((response.status, length, a, body))

    assert told == [(200, b"%d" % len(body), b"b", body) for body in bodies]
    assert child.connections == 1
    assert pools.heard_bytes(str(path)) == sum(map(len, bodies))


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        pytest.param(sized(b"no")[:9] + b"404" + sized(b"no")[12:], (404, b"no"), id="status"),
        pytest.param(sized(b"end", more=b"Connection: close\r\n"), (200, b"end"), id="its last"),
        pytest.param(CHUNKED + b"3\r\nend\r\n0\r\n\r\n", (200, b"end"), id="in chunks"),
    ],
)
async def test_a_reply_headed_otherwise_than_the_one_before_is_taken_for_what_it_is(
    pools: UpstreamPools, path: Path, reply: bytes, found: tuple[int, bytes]
) -> None:
    async with listening(path, lambda c: (replying(c, sized(b"one"), reply, OK), replying(c, OK))):
        replies = [await fetch(pools, path) for _ in range(3)]

    assert replies == [(200, b"one"), found, (200, b"hello")]


async def test_streams_headed_like_the_one_before_or_otherwise_are_taken_for_what_they_are(
    pools: UpstreamPools, path: Path
) -> None:
    end = b"3\r\nend\r\n0\r\n\r\n"
    other = CHUNKED.replace(b"\r\n\r\n", b"\r\nA: b\r\n\r\n")
    refused = CHUNKED.replace(b"200", b"404")
    replies = (CHUNKED, CHUNKED, other, other, refused, refused, CHUNKED)
    told: list[tuple[int, bytes, bytes]] = []
    with_trailer = CHUNKED + end[:-2] + b"A: trailer\r\n\r\n"
    said = (*(head + end for head in replies), with_trailer, sized(b"end"), CHUNKED + end)
    async with listening(path, lambda c: (replying(c, *said),)) as child:
        for _ in said:
            async with pools.request(str(path), method=b"POST", target=b"/") as response:
                body = await response.read(limit_bytes=100)
                told.append((response.status, response.header(b"a"), body))

    assert told == [
        *((200, b"", b"end"),) * 2,
        *((200, b"b", b"end"),) * 2,
        *((404, b"", b"end"),) * 2,
        *((200, b"", b"end"),) * 2,
        (200, b"b", b"end"),
        (200, b"", b"end"),
    ]
    assert child.connections == 1


async def test_a_connection_on_which_more_than_a_reply_of_the_same_head_came_is_not_used_again(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(
        path, lambda c: (replying(c, sized(b"one"), sized(b"two") * 2, OK), replying(c, OK))
    ) as child:
        replies = [await fetch(pools, path) for _ in range(3)]

    assert replies == [(200, b"one"), (200, b"two"), (200, b"hello")]
    assert child.connections == 2


async def test_a_reply_of_the_same_head_that_is_longer_than_allowed_is_refused(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, lambda c: (replying(c, sized(b"one"), sized(b"x" * 101)),)):
        await fetch(pools, path)
        with pytest.raises(UpstreamBroken, match="over 100 bytes"):
            async with pools.request(str(path), method=b"POST", target=b"/") as response:
                await response.read(limit_bytes=100)


async def test_a_connection_that_the_child_closes_is_not_used_again(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, lambda c: (replying(c, CLOSING),)) as child:
        replies = [await fetch(pools, path) for _ in range(2)]

    assert replies == [(200, b"hello")] * 2
    assert child.connections == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world", id="length"),
        pytest.param(CHUNKED + b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n", id="chunked"),
        pytest.param(CHUNKED + b"b;x=y\r\nhello world\r\n0\r\nT: x\r\n\r\n", id="trailer"),
    ],
)
async def test_a_reply_is_whole_however_it_was_cut(
    pools: UpstreamPools, path: Path, reply: bytes, size: int
) -> None:
    def make(box: list[Child]) -> tuple[Script, ...]:
        async def script(reader: Reader, writer: Writer) -> None:
            await box[0].request(reader)
            for at in range(0, len(reply), size):
                writer.write(reply[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
            await box[0].request(reader)

        return (script,)

    async with listening(path, make):
        assert await fetch(pools, path) == (200, b"hello world")


@given(
    parts=st.lists(st.binary(min_size=1, max_size=400), max_size=8),
    cuts=st.lists(st.integers(0, 3500), max_size=12),
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_any_body_in_any_chunks_and_any_cuts_arrives_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("s") / "c.sock"
    reply = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    marks = sorted({0, len(reply), *(cut % len(reply) for cut in cuts)})

    def make(box: list[Child]) -> tuple[Script, ...]:
        async def script(reader: Reader, writer: Writer) -> None:
            await box[0].request(reader)
            for start, end in pairwise(marks):
                writer.write(reply[start:end])
                await writer.drain()
                await asyncio.sleep(0)

        return (script,)

    async with UpstreamPools(connections_per_child=1) as pools, listening(path, make):
        assert await fetch(pools, path) == (200, b"".join(parts))


@given(junk=st.binary(min_size=1, max_size=300))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
async def test_any_bytes_give_a_reply_or_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("s") / "c.sock"
    async with (
        UpstreamPools(connections_per_child=1) as pools,
        listening(path, lambda c: (replying(c, junk),)),
    ):
        with pytest.raises(UpstreamError):
            await fetch(pools, path)


async def test_what_has_arrived_together_is_read_together(pools: UpstreamPools, path: Path) -> None:
    reply = CHUNKED + b"5\r\nhello\r\n" * 100 + b"0\r\n\r\n"
    async with (
        listening(path, lambda c: (replying(c, reply),)),
        pools.request(str(path), method=b"POST", target=b"/") as response,
    ):
        chunks = [chunk async for chunk in response.chunks()]

    assert b"".join(chunks) == b"hello" * 100
    assert len(chunks) < 10


class Slow:
    """A reader that has enough until it is told otherwise."""

    def __init__(self) -> None:
        self.asked, self.wakes = asyncio.Event(), asyncio.Event()

    @property
    def is_slow(self) -> bool:
        return not self.wakes.is_set()

    async def drained(self) -> None:
        self.asked.set()
        await self.wakes.wait()


async def test_what_is_poured_is_taken_before_more_of_it_comes(
    pools: UpstreamPools, path: Path
) -> None:
    taken: list[bytes] = []
    more = asyncio.Event()

    async def script(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(CHUNKED + b"3\r\none\r\n")
        await more.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        await reader.read()

    def take(data: bytes) -> None:
        taken.append(data)
        more.set()

    async with (
        listening(path, lambda _: (script,)),
        pools.request(str(path), method=b"POST", target=b"/", body=(b"{}",)) as response,
    ):
        await response.pour(take, ALWAYS_READY)

    assert taken == [b"one", b"two"]


async def test_while_its_reader_is_slow_nothing_is_poured_and_the_child_waits(
    pools: UpstreamPools, path: Path
) -> None:
    total, sent_bytes, slow = 64 << 20, 0, Slow()
    taken: list[bytes] = []

    async def script(reader: Reader, writer: Writer) -> None:
        nonlocal sent_bytes
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent_bytes < total:
            writer.write(bytes(1 << 20))
            sent_bytes += 1 << 20
            await writer.drain()

    async with (
        listening(path, lambda _: (script,)),
        pools.request(str(path), method=b"POST", target=b"/", body=(b"{}",)) as response,
    ):
        pouring = asyncio.ensure_future(response.pour(taken.append, slow))
        await slow.asked.wait()
        assert (taken, sent_bytes < total) == ([], True)
        slow.wakes.set()
        await pouring

    assert sum(map(len, taken)) == total


async def test_what_is_raised_while_pouring_ends_it_and_the_connection(
    pools: UpstreamPools, path: Path
) -> None:
    def take(data: bytes) -> None:
        raise LookupError(data)

    async def script(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"{}")
        writer.write(CHUNKED)
        await writer.drain()
        writer.write(b"3\r\none\r\n")
        await reader.readexactly(1)

    async with listening(path, lambda _: (script,)) as child:
        with pytest.raises(LookupError):
            async with pools.request(
                str(path), method=b"POST", target=b"/", body=(b"{}",)
            ) as response:
                await response.pour(take, ALWAYS_READY)
        await child.left.wait()


async def test_a_child_lost_while_its_reply_is_poured_is_gone_after_all_that_came(
    pools: UpstreamPools, path: Path
) -> None:
    taken: list[bytes] = []
    cut = CHUNKED + b"3\r\none\r\n"
    async with listening(path, lambda c: (replying(c, cut),)):
        with pytest.raises(UpstreamGone):
            async with pools.request(
                str(path), method=b"POST", target=b"/", body=(b"{}",)
            ) as response:
                await response.pour(taken.append, ALWAYS_READY)

    assert b"".join(taken) == b"one"


async def test_who_gives_up_waiting_for_room_leaves_it_to_the_next(path: Path) -> None:
    async with (
        UpstreamPools(connections_per_child=1) as pools,
        listening(path, lambda c: (replying(c, OK, OK),)),
    ):
        async with pools.request(str(path), method=b"POST", target=b"/", body=(b"{}",)):
            impatient = asyncio.ensure_future(fetch(pools, path))
            patient = asyncio.ensure_future(fetch(pools, path))
            await asyncio.sleep(0)
            impatient.cancel()
        status, _ = await patient

    assert status == 200
    assert impatient.cancelled()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(b"\x00\x01\x02 no http\r\n\r\n", id="no HTTP at all"),
        pytest.param(b"HTTP/1.1 abc OK\r\n\r\n", id="a status that is no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", id="a negative length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", id="a length of letters"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nhello", id="no length"),
        pytest.param(CHUNKED + b"zz\r\nhello\r\n", id="a chunk of no size"),
        pytest.param(b"HTTP/1.1 103 Hints\r\n\r\n" + OK, id="an interim reply"),
        pytest.param(b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="upgrade"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"Content-Length: 0\r\n\r\n",
            id="200 header fields",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200_000 + b"\r\nContent-Length: 0\r\n\r\n",
            id="a header of 200 kB",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 400_000, id="a head without an end"),
    ],
)
async def test_a_reply_that_is_none_is_refused_and_its_connection_closed(
    pools: UpstreamPools, path: Path, reply: bytes
) -> None:
    def make(box: list[Child]) -> tuple[Script, ...]:
        async def script(reader: Reader, writer: Writer) -> None:
            await box[0].request(reader)
            writer.write(reply)
            await box[0].request(reader)  # until the connection is closed

        return (script,)

    async with listening(path, make) as child:
        with pytest.raises(UpstreamBroken):
            await fetch(pools, path)
        async with asyncio.timeout(SOON_S):
            await child.left.wait()


async def test_bytes_after_a_reply_close_its_connection(pools: UpstreamPools, path: Path) -> None:
    async with listening(path, lambda c: (replying(c, OK + b"more"), replying(c, OK))) as child:
        replies = [await fetch(pools, path) for _ in range(2)]

    assert replies == [(200, b"hello")] * 2
    assert child.connections == 2


async def test_a_child_that_closes_before_it_answers_is_gone_and_not_asked_again(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, lambda c: (replying(c, b""),)) as child:
        with pytest.raises(UpstreamGone) as gone:
            await fetch(pools, path)

    assert gone.value.before_any_byte
    assert len(child.requests) == 1


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Le", id="in its head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", id="in its body"),
        pytest.param(CHUNKED + b"5\r\nhello\r\n", id="before its last chunk"),
    ],
)
async def test_a_child_that_closes_in_mid_reply_is_gone_after_what_it_said(
    pools: UpstreamPools, path: Path, part: bytes
) -> None:
    heard: list[bytes] = []
    async with listening(path, lambda c: (replying(c, part),)) as child:
        with pytest.raises(UpstreamGone) as gone:
            await listen_in(pools, path, heard.append)

    assert not gone.value.before_any_byte
    assert b"".join(heard) == (b"hello" if b"hello" in part else b"")
    assert len(child.requests) == 1


async def test_where_nobody_listens_the_child_is_gone(pools: UpstreamPools, path: Path) -> None:
    with pytest.raises(UpstreamGone) as gone:
        await fetch(pools, path)

    assert gone.value.before_any_byte


async def test_a_reused_connection_that_dies_unanswered_is_made_good_once(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(
        path, lambda c: (replying(c, OK, b""), replying(c, OK), replying(c, OK))
    ) as child:
        replies = [await fetch(pools, path, body) for body in (b"1", b"2")]

    assert replies == [(200, b"hello")] * 2
    assert [request[-1:] for request in child.requests] == [b"1", b"2", b"2"]


async def test_the_second_loss_is_the_childs(pools: UpstreamPools, path: Path) -> None:
    async with listening(path, lambda c: (replying(c, OK, b""), replying(c, b""))) as child:
        await fetch(pools, path)
        with pytest.raises(UpstreamGone):
            await fetch(pools, path)

    assert len(child.requests) == 3


async def test_a_reused_connection_that_dies_after_a_byte_is_not_made_good(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, lambda c: (replying(c, OK, b"H"), replying(c, OK))) as child:
        await fetch(pools, path)
        with pytest.raises(UpstreamGone) as gone:
            await fetch(pools, path)

    assert not gone.value.before_any_byte
    assert len(child.requests) == 2


async def test_no_request_is_lost_while_the_child_closes_idle_connections_at_random(
    pools: UpstreamPools, path: Path
) -> None:
    dice = random.Random(7)

    def make(box: list[Child]) -> tuple[Script, ...]:
        async def script(reader: Reader, writer: Writer) -> None:
            keeps = True
            while keeps:
                await box[0].request(reader)
                writer.write(OK)
                keeps = dice.random() < 0.6
                await asyncio.sleep(dice.random() * 0.002)  # so that it closes at any moment

        return (script,)

    async def many() -> list[tuple[int, bytes]]:
        return [await fetch(pools, path) for _ in range(60)]

    async with listening(path, make):
        replies = await asyncio.gather(*(many() for _ in range(5)))

    assert replies == [[(200, b"hello")] * 60] * 5


async def test_idle_connections_are_closed_before_the_child_would(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, lambda c: (replying(c, OK, OK),)) as child:
        await fetch(pools, path)
        async with asyncio.timeout(4.9):  # llama-server's own limit is 5 s
            await child.left.wait()


def silent(box: list[Child]) -> tuple[Script, ...]:
    """Reads requests and never answers."""

    async def script(reader: Reader, writer: Writer) -> None:
        while True:
            await box[0].request(reader)

    return (script,)


def endless(box: list[Child]) -> tuple[Script, ...]:
    """Begins a reply and never ends it."""

    async def script(reader: Reader, writer: Writer) -> None:
        await box[0].request(reader)
        writer.write(CHUNKED + b"5\r\nhello\r\n")
        await box[0].request(reader)

    return (script,)


async def test_a_caller_who_is_cancelled_before_the_reply_closes_the_connection(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, silent) as child:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await fetch(pools, path)
        async with asyncio.timeout(SOON_S):
            await child.left.wait()


async def test_leaving_the_block_in_mid_reply_closes_the_connection(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, endless) as child:
        async with pools.request(str(path), method=b"POST", target=b"/") as response:
            first = await anext(response.chunks())
        async with asyncio.timeout(SOON_S):
            await child.left.wait()

    assert first == b"hello"


async def test_forgetting_a_child_ends_what_is_under_way(pools: UpstreamPools, path: Path) -> None:
    async with listening(path, endless) as child:
        with pytest.raises(UpstreamGone):
            await listen_in(pools, path, lambda _: pools.forget(str(path)))
        async with asyncio.timeout(SOON_S):
            await child.left.wait()


async def test_forgetting_a_child_closes_its_idle_connections(
    pools: UpstreamPools, path: Path
) -> None:
    async with listening(path, lambda c: (replying(c, OK, OK),)) as child:
        await fetch(pools, path)
        pools.forget(str(path))
        async with asyncio.timeout(SOON_S):
            await child.left.wait()


async def test_a_slow_reader_makes_the_child_wait_and_loses_nothing(
    pools: UpstreamPools, path: Path
) -> None:
    piece, pieces = b"x" * 65536, 256
    stalled = asyncio.Event()
    sent = 0

    def make(box: list[Child]) -> tuple[Script, ...]:
        async def script(reader: Reader, writer: Writer) -> None:
            nonlocal sent
            await box[0].request(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(piece) * pieces))
            for _ in range(pieces):
                writer.write(piece)
                drained = asyncio.ensure_future(writer.drain())
                if not (await asyncio.wait((drained,), timeout=0.3))[0]:
                    stalled.set()
                await drained
                sent += len(piece)

        return (script,)

    async with (
        listening(path, make),
        pools.request(str(path), method=b"POST", target=b"/") as response,
    ):
        async with asyncio.timeout(SOON_S):
            await stalled.wait()
        held_bytes = sent
        body = await response.read(limit_bytes=1 << 30)

    assert held_bytes < 4 << 20
    assert len(body) == len(piece) * pieces


async def test_a_large_request_arrives_whole(pools: UpstreamPools, path: Path) -> None:
    body = b"0123456789abcdef" * 500_000
    async with listening(path, lambda c: (replying(c, OK),)) as child:
        assert await fetch(pools, path, body) == (200, b"hello")

    assert child.requests[0].endswith(body)


async def test_an_answer_before_the_request_was_taken_whole_is_heard(
    pools: UpstreamPools, path: Path
) -> None:
    refused = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"

    def make(box: list[Child]) -> tuple[Script, ...]:
        async def script(reader: Reader, writer: Writer) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(refused)
            await writer.drain()
            await asyncio.Event().wait()

        return (script,)

    async with listening(path, make), asyncio.timeout(SOON_S):
        assert await fetch(pools, path, b"x" * (8 << 20)) == (413, b"no")


async def test_a_child_gets_no_more_connections_than_it_may(path: Path) -> None:
    async with (
        UpstreamPools(connections_per_child=2) as pools,
        listening(path, lambda c: (replying(c, *[OK] * 10),)) as child,
    ):
        replies = await asyncio.gather(*(fetch(pools, path) for _ in range(10)))

    assert replies == [(200, b"hello")] * 10
    assert child.connections <= 2


async def test_a_reply_over_its_limit_is_refused(pools: UpstreamPools, path: Path) -> None:
    async with (
        listening(path, lambda c: (replying(c, OK),)),
        pools.request(str(path), method=b"POST", target=b"/") as response,
    ):
        with pytest.raises(UpstreamBroken):
            await response.read(limit_bytes=4)


async def test_what_a_child_says_is_counted_without_its_keep_alive_comments(path: Path) -> None:
    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data)

    said = (chunk(b":\n\n"), chunk(b"data: 1\n\n"), chunk(b":\n\n"), b"0\r\n\r\n")

    async def script(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in (CHUNKED, *said):
            writer.write(part)
            await writer.drain()

    async with (
        listening(path, lambda _: (script,)),
        UpstreamPools(connections_per_child=1) as pools,
    ):
        before = pools.heard_bytes(str(path))
        await listen_in(pools, path, lambda _: None)
        await listen_in(pools, path, lambda _: None)  # on another connection: the script ended

        assert (before, pools.heard_bytes(str(path))) == (0, 2 * len(b"data: 1\n\n"))
