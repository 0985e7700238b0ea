import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from cs_system.server.process import start_threads
from cs_system.server.run import Run, RunLimits
from cs_system.server.system import System, SystemOptions


class HeldEngines:
    """A pool of engines in which a run ends when `may_end` is set."""

    def __init__(self):
        self.ends, self.may_end = threading.Event(), threading.Event()

    def prepare(self):
        self.ends.set()
        self.may_end.wait()


def test_an_idle_chief_that_goes_during_its_release_leaves_the_system_free():
    async def hold(engines, device):
        options = SystemOptions("cs2", "{}", idle_release_s=0.01, peer_timeout_s=0.06)
        system = System(options, device, engines, None, None)
        ticket = system.enter("a", "token", wait=False)
        await system.grant(ticket, None)
        held = asyncio.create_task(system.hold(ticket))
        await asyncio.to_thread(engines.ends.wait)
        held.cancel()
        await asyncio.wait({held})
        engines.may_end.set()
        next_ticket = system.enter("b", "token", wait=True)
        await asyncio.wait_for(system.grant(next_ticket, on_queued), 10.0)
        return system.book.holder is next_ticket

    async def on_queued(position, holder):
        pass

    with ThreadPoolExecutor(1) as device:
        assert asyncio.run(hold(HeldEngines(), device))


def test_the_use_of_a_job_does_not_follow_a_clock_that_is_set(monkeypatch):
    async def hold(device):
        system = System(SystemOptions("cs2", "{}"), device, HeldEngines(), None, None)
        await system.grant(system.enter("a", "token", wait=False), None)
        used = []
        for jump_s in (36_000.0, -36_000.0):
            monkeypatch.setattr(time, "time", lambda jump_s=jump_s: now_s + jump_s)
            used.append(system.running_usage().wafer_s)
        return used

    now_s = time.time()
    with ThreadPoolExecutor(1) as device:
        assert all(0.0 < used_s < 60.0 for used_s in asyncio.run(hold(device)))


@pytest.mark.parametrize("turns", range(5))
def test_a_chief_that_goes_when_something_changes_holds_the_system_no_longer(turns):
    """The change, and the cancellation of the call, may come in any turns of the event loop."""

    async def hold(device):
        system = System(SystemOptions("cs2", "{}"), device, HeldEngines(), None, None)
        ticket = system.enter("a", "token", wait=False)
        await system.grant(ticket, None)
        held = asyncio.create_task(system.hold(ticket))
        for _ in range(10):  # until it waits
            await asyncio.sleep(0)
        system.input_opened()
        for _ in range(turns):
            await asyncio.sleep(0)
        held.cancel()
        await asyncio.wait({held}, timeout=0.5)
        return held.cancelled()

    with ThreadPoolExecutor(1) as device:
        assert asyncio.run(hold(device))


def test_a_process_that_takes_no_program_is_killed_with_the_run(monkeypatch):
    async def end(device):
        killed = threading.Event()
        process = SimpleNamespace(kill=killed.set, end=lambda: None)
        run = Run("a", "token", device, None, RunLimits(), None, None, HeldEngines())
        run._engines.may_end.set()
        run._process = process
        loading = asyncio.create_task(run._on_device("load", killed.wait, 10))
        await asyncio.sleep(0)
        await run.close("its chief has gone")
        return await loading

    monkeypatch.setattr("cs_system.server.run._OPERATION_END_S", 0.05)
    with ThreadPoolExecutor(1) as device:
        assert asyncio.run(end(device))


def test_the_system_is_free_after_a_release_that_no_thread_could_serve(monkeypatch, caplog):
    async def release(engines, device):
        engines.may_end.set()
        system = System(SystemOptions("cs2", "{}"), device, engines, None, None)
        ticket = system.enter("a", "token", wait=False)
        await system.grant(ticket, None)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", no_thread)
            await asyncio.wait({system.release(ticket, None, "its end")})
        await system.grant(system.enter("b", "token", wait=False), None)
        return engines.ends.is_set()

    async def no_thread(*_):
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(1) as device:
        assert asyncio.run(release(HeldEngines(), device))
    assert "recording the use of the system failed" in caplog.text


def test_threads_of_a_pool_run_from_the_start():
    before = threading.active_count()
    with start_threads(3, "test") as pool:
        assert threading.active_count() == before + 3
        assert pool.submit(int, "7").result(10.0) == 7
