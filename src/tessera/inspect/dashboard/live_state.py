"""The state of a cluster as documents that follow its ledger, and the events that tell viewers of changes.

Only nodes that changed are rendered again, once for all viewers. The log of the ledger's arrays says which: nothing is
hooked into the ledger, and without viewers nothing is done at all.

    asleep --first viewer--> rendering all nodes, in slices --> following, a few times a second
       ^                                                             |
       '------------------ no viewer for `LINGER_S` -----------'

Events are bytes that all viewers share. A viewer has no queue: it remembers the version that it has seen and reads on
from there. If the log no longer reaches back that far, because the viewer is slow or was away, the viewer is told to
fetch the whole state again (`resync`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tessera.inspect.dashboard.documents import NodeDocument, NodeRenderer, RenderContext, Totals, encode
from tessera.inspect.dashboard.source import PageSource
from tessera.inspect.dashboard.steps import in_steps, pause_for
from tessera.inspect.dashboard.waiting import WaitingPods
from tessera.inspect.state import Json
from tessera.inspect.utilization import MeasuredUse
from tessera.scheduler.pod_cycle import CycleState

MAX_EVENTS = 2_000
"""some eight minutes of events, at four a second"""
MAX_BYTES = 16 * 2**20
"""of events; about the size of the whole state of the largest clusters"""
PIECE_BYTES = 256 * 2**10
"""after which no other event is sent at once: a viewer that does not read holds no more than that"""
HEARTBEAT_S = 15.0
"""a proxy that sees nothing for longer may end the stream"""
HEARTBEAT = b": still here\n\n"
RESYNC = b"event: resync\ndata: {}\n\n"

PERIOD_S = 0.2
"""between two looks for changes: a change is on the wire well within 300 ms"""
JUDGE_S = 0.5
"""between two rounds over the waiting pods"""
TOTALS_S = 2.0
"""between two events with totals"""
LINGER_S = 30.0
"""that documents are kept up to date without a viewer: people reload pages"""
RENDER_SHARE = 0.5
"""of the event loop's time that rendering takes at most"""
KEPT_S = 5.0
"""that a compressed state is good for: a viewer goes on from its version"""
LEVEL = 1
"""of compression: four times faster than the default, a fifth larger"""


def encode_event(name: str, data: bytes, version: int) -> bytes:
    """`data` is JSON, which has no line breaks."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (version, name.encode(), data)


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    data: bytes


class EventLog:
    """Events in the order of their versions. Used from one event loop."""

    def __init__(self, first_version: int) -> None:
        self.version = self._oldest = first_version
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._changed: asyncio.Future[None] | None = None
        self._is_closed = False

    def append(self, name: str, data: bytes) -> None:
        self.version += 1
        entry = _Entry(self.version, encode_event(name, data, self.version))
        self._entries.append(entry)
        self._bytes += len(entry.data)
        while len(self._entries) > MAX_EVENTS or self._bytes > MAX_BYTES:
            gone = self._entries.popleft()
            self._bytes -= len(gone.data)
            self._oldest = gone.version
        self._wake()

    def start_over(self) -> None:
        """What viewers have is void: all of them fetch the state again."""
        self.version += 1
        self._oldest = self.version
        self._entries.clear()
        self._bytes = 0
        self._wake()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._wake()

    def reaches(self, version: int) -> bool:
        """Whether a viewer of this version can go on with the events of the log."""
        return self._oldest <= version <= self.version

    async def stream(self, version: int) -> AsyncGenerator[bytes, None]:
        """Events after `version`, until the log is closed."""
        # At once, so that the viewer knows that it is connected.
        yield HEARTBEAT
        while not self._is_closed:
            if not self.reaches(version):
                yield RESYNC
                return
            if version < self.version:
                news, version = self._after(version)
                yield news
            else:
                yield await self._wait()

    def _after(self, version: int) -> tuple[bytes, int]:
        """The next events, and the version that the viewer has with them."""
        news: list[bytes] = []
        size = 0
        for entry in self._entries:
            if entry.version <= version:
                continue
            news.append(entry.data)
            version, size = entry.version, size + len(entry.data)
            if size >= PIECE_BYTES:
                break
        return b"".join(news), version

    async def _wait(self) -> bytes:
        """Empty when there is something new, or a heartbeat when there was nothing for long."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(asyncio.shield(self._changed), HEARTBEAT_S)
        except TimeoutError:
            return HEARTBEAT
        return b""

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None


class PackedState(NamedTuple):
    """A compressed state document."""

    version: int
    made_at: float
    """on the event loop's clock"""
    data: bytes


class LiveContext(RenderContext):
    """What a source and the scheduler's engine know now."""

    def __init__(self, source: PageSource) -> None:
        super().__init__(source.origin)
        self._source = source
        self.users_of = source.view.users_of

    @property
    def use(self) -> MeasuredUse:
        return self._source.measurements

    def is_handing_over(self, uid: str) -> bool:
        return self._source.view.state_of(uid) is CycleState.HANDING_OVER

    def until(self, uid: str) -> int | None:
        return self._source.view.held_until(uid)


class LiveState:
    """Follows one source."""

    def __init__(
        self,
        source: PageSource,
        *,
        share: float = 0.5,
        background_share: float = 0.5,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`share` is the part of the event loop's time that a question takes while it is answered, `background_share`
        that for finding out why pods wait."""
        self.source = source
        self.pause = pause_for(share)
        self._background_pause = pause_for(background_share)
        self.viewers = 0
        self._now = now
        self._loop = asyncio.get_running_loop()
        # Versions of two processes, or of two runs of one, must not be taken for each other.
        self.log = EventLog(int(now() * 1000))
        self._renderer = NodeRenderer(source.view.ledger, LiveContext(source))
        self._documents: dict[str, NodeDocument] = {}
        self._known_models = 0
        self.totals = Totals(self._renderer.models)
        self.waiting = WaitingPods(source)
        self._totals_body = b"{}"
        self._totals_at = self._waiting_at = float("-inf")
        self._problem = source.describe()["problem"]
        self._seen = 0
        self._epoch = -1
        self._moving: dict[str, CycleState] = {}
        self._packed: PackedState | None = None
        self._packing: asyncio.Task[PackedState] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_complete = asyncio.Event()
        self._used_at = 0.0

    # -- for viewers

    async def state(self) -> bytes:
        """The whole state, compressed with gzip."""
        async with self._awake():
            packed = self._packed
            if packed is not None and self._loop.time() - packed.made_at < KEPT_S and self.log.reaches(packed.version):
                return packed.data
            if self._packing is None:
                self._packing = asyncio.create_task(self._pack())
                self._packing.add_done_callback(self._on_packed)
            return (await asyncio.shield(self._packing)).data

    async def shapes(self) -> list[Json]:
        """How many more of the usual shapes fit."""
        async with self._awake():
            return self.totals.shapes()

    async def events(self, version: int) -> AsyncGenerator[bytes, None]:
        """What changes after this version."""
        async with self._awake():
            stream = self.log.stream(version)
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    yield piece

    async def close(self) -> None:
        self.log.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- following the ledger

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        """Documents are complete and kept up to date for as long as the block lasts."""
        self.viewers += 1
        try:
            if self._task is None or self._task.done():
                self._is_complete = asyncio.Event()
                self._task = asyncio.create_task(self._follow())
            complete = asyncio.create_task(self._is_complete.wait())
            try:
                await asyncio.wait([self._task, complete], return_when=asyncio.FIRST_COMPLETED)
            finally:
                complete.cancel()
            if self._task.done():
                self._task.result()
            yield
        finally:
            self.viewers -= 1
            self._used_at = self._loop.time()

    async def _follow(self) -> None:
        judging: asyncio.Task[None] | None = None
        try:
            await self._refresh_nodes()
            self._refresh_sums()
            self._is_complete.set()
            judging = asyncio.create_task(self._judge())
            while self.viewers or self._loop.time() - self._used_at < LINGER_S:
                await asyncio.sleep(PERIOD_S)
                await self._refresh_nodes()
                self._refresh_sums()
                if judging.done():
                    judging.result()
        finally:
            if judging is not None:
                judging.cancel()
            self._fall_asleep()

    async def _judge(self) -> None:
        while True:
            await self.waiting.judge(self._background_pause)
            await asyncio.sleep(JUDGE_S)

    def _fall_asleep(self) -> None:
        """Give the memory back. The log starts over, because nothing is recorded from now on."""
        self._documents, self._packed, self._epoch = {}, None, -1
        self._totals_at = self._waiting_at = float("-inf")
        self.totals = Totals(self._renderer.models)
        self.waiting.clear()
        self.log.start_over()

    def _refresh_sums(self) -> None:
        """Tell viewers of waiting pods, and of totals now and then."""
        problem = self.source.describe()["problem"]
        if problem != self._problem:
            # Only a whole state says so; it is rare.
            self._problem, self._packed = problem, None
            self.log.start_over()
        if self._loop.time() - self._waiting_at >= JUDGE_S:
            self._waiting_at = self._loop.time()
            changed = self.waiting.refresh()
            if changed is not None:
                self.log.append("waiting", encode(changed))
        if self._loop.time() - self._totals_at >= TOTALS_S:
            self._totals_at = self._loop.time()
            now = round(self._now())
            body = encode(self.totals.document(self.waiting.asked, self.waiting.waited(now)))
            if body != self._totals_body:
                self._totals_body = body
                self.log.append("totals", body)

    async def _refresh_nodes(self) -> None:
        is_first = self._epoch < 0
        names = self._changed_nodes()
        nodes: list[bytes] = []
        gone: list[str] = []
        pods: dict[str, bytes] = {}
        async for name in in_steps(names, pause_for(RENDER_SHARE)):
            before, after = self._documents.pop(name, None), self._renderer.render(name)
            self.totals.replace(before, after)
            if after is not None:
                self._documents[name] = after
            if before is not None and after is not None and before.body == after.body and before.pods == after.pods:
                continue
            old, new = before.pods if before is not None else {}, after.pods if after is not None else {}
            pods.update((uid, encode({uid: None})[1:-1]) for uid in old if uid not in new and not self._is_placed(uid))
            pods.update((uid, body) for uid, body in new.items() if old.get(uid) != body)
            if after is not None:
                nodes.append(after.body)
            elif before is not None:
                gone.append(name)
        if is_first:
            self._known_models = len(self._renderer.models.names)
            self.log.start_over()
        elif nodes or gone or pods:
            self._publish(nodes, gone, pods.values())

    def _publish(self, nodes: list[bytes], gone: list[str], pods: Iterable[bytes]) -> None:
        models = self._renderer.models.names
        grown, self._known_models = len(models) > self._known_models, len(models)
        parts = [b'{"version":%d' % (self.log.version + 1)]
        parts += [b',"models":' + encode(models)] if grown else []
        parts.append(b',"pods":{' + b",".join(pods) + b"}")
        parts.append(b',"nodes":[' + b",".join(nodes) + b"]")
        parts.append(b',"gone":' + encode(gone) + b"}")
        self.log.append("nodes", b"".join(parts))

    def _changed_nodes(self) -> list[str]:
        ledger = self.source.view.ledger
        arrays = ledger.arrays
        columns = arrays.changed_since(self._seen) if self._epoch >= 0 else None
        if columns is None:
            names = dict.fromkeys([*self._documents, *ledger.node_names()])
        else:
            names = dict.fromkeys(
                filter(None, (arrays.names[column] for column in columns if column < len(arrays.names)))
            )
            if self._epoch != arrays.epoch:
                registered = set(ledger.node_names())
                names.update(dict.fromkeys(name for name in self._documents if name not in registered))
                names.update(dict.fromkeys(name for name in ledger.node_names() if name not in self._documents))
        self._seen, self._epoch = arrays.now, arrays.epoch
        moving = self.source.view.moving()
        for uid in moving.keys() | self._moving.keys():
            entry = ledger.pod(uid)
            if moving.get(uid) is not self._moving.get(uid) and entry is not None:
                names[entry.facts.node] = None
        self._moving = moving
        for name in self.source.measured_anew():
            names[name] = None
        return list(names)

    def _is_placed(self, uid: str) -> bool:
        """Whether the pod holds cards of another node by now."""
        entry = self.source.view.ledger.pod(uid)
        return entry is not None and bool(entry.holdings)

    # -- the whole state

    async def _pack(self) -> PackedState:
        version, made_at, pieces = self.log.version, self._loop.time(), self._pieces()
        data = await asyncio.to_thread(compress, pieces)
        return PackedState(version, made_at, data)

    def _on_packed(self, task: asyncio.Task[PackedState]) -> None:
        self._packing = None
        if not task.cancelled() and task.exception() is None:
            self._packed = task.result()

    def _pieces(self) -> list[bytes]:
        """The parts of the document; taken at one moment, joined and compressed later."""
        head = {"version": self.log.version, "time": self._now(), "source": self.source.describe()}
        pieces = [encode(head)[:-1], b',"models":', encode(self._renderer.models.names), b',"pods":{']
        documents = [self._documents[name] for name in sorted(self._documents)]
        pieces.append(b",".join([b",".join(document.pods.values()) for document in documents if document.pods]))
        pieces += (b'},"nodes":[', b",".join([document.body for document in documents]))
        pieces += (b'],"waiting":', encode(self.waiting.rows()), b',"totals":', self._totals_body, b"}")
        return pieces


def compress(pieces: list[bytes]) -> bytes:
    # zlib releases the interpreter; 16 added to the window's size makes a gzip file.
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(b"".join(pieces)) + packer.flush()
