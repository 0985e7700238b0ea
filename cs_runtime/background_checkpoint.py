"""A checkpoint that is read from the system while the next steps run there."""

from __future__ import annotations

import threading

from cs_runtime.program import State
from cs_system.state_reading import StateStream


class ReadingState:
    """The state after a step on its way to the chief, taken by a thread of its own.

    Args:
        step: Global step.
        stream: Of the state.
    """

    def __init__(self, step: int, stream: StateStream) -> None:
        self.step = step
        self._stream = stream
        self._state: State | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether `state` returns at once."""
        return not self._thread.is_alive()

    def state(self) -> State:
        """Waits for all of it.

        Raises:
            cs_system.errors.CsSystemError: the system failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._state is not None
        return self._state

    def _read(self) -> None:
        try:
            self._state = self._stream.read()
        except BaseException as error:  # it is raised where the state is asked for
            self._error = error
