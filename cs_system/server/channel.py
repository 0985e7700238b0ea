"""From a thread to the event loop, with a bound on what lies between them."""

from __future__ import annotations

import asyncio
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class ThreadChannel(Generic[T]):
    """A queue from one thread to one coroutine of the loop that created it.

    Args:
        capacity: Items between the two; the thread waits when there are more.
    """

    def __init__(self, capacity: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[T | None] = asyncio.Queue()
        self._room = threading.Semaphore(capacity)
        self._closed = False

    def put(self, item: T) -> None:
        """Called by the thread; waits for room. Once the channel is closed the item is dropped."""
        if self._closed:
            return
        self._room.acquire()
        if not self._closed:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    def close(self) -> None:
        """Called in the loop: ends `get`, and any wait of the thread."""
        self._closed = True
        # Ends the one wait that may be under way; later items are dropped before they wait.
        self._room.release()
        self._items.put_nowait(None)

    async def get(self) -> T | None:
        """The next item; None after the last one of a closed channel."""
        item = await self._items.get()
        self._room.release()
        return item
