"""Snapshots of a run whose callers are cancelled, with a fake engine that holds one, as MemoryX does."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

from cs_system.server.run import Run


class OneSnapshot:
    """An engine whose snapshots end slowly: the end of an earlier one discards the current one."""

    def __init__(self):
        self.holds = False
        self.ending, self.may_end = threading.Event(), threading.Event()

    def snapshot(self, names):
        self.holds = True
        return self

    def read(self, names):
        assert self.holds, "another snapshot has been discarded"
        return {name: np.zeros(1) for name in names}

    def end(self):
        self.ending.set()
        assert self.may_end.wait(10)
        self.holds = False


def test_a_cancelled_snapshot_ends_before_the_next_one_begins():
    async def read(run, delay_s):
        async with run.snapshot(None) as part:
            await asyncio.sleep(delay_s)
            return await part(["w"])

    async def read_twice():
        engine = OneSnapshot()
        with ThreadPoolExecutor(1) as device:
            run = Run("job", "", device, *(SimpleNamespace(),) * 5)
            run._engine = engine
            first = asyncio.ensure_future(read(run, 0.0))
            assert await asyncio.to_thread(engine.ending.wait, 10)
            first.cancel()  # while its end is awaited
            second = asyncio.ensure_future(read(run, 0.3))
            await asyncio.sleep(0.1)
            engine.may_end.set()
            assert list(await second) == ["w"]
            assert (await asyncio.gather(first, return_exceptions=True))[
                0
            ].__class__ is asyncio.CancelledError

    asyncio.run(read_twice())
