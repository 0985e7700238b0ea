"""How far the input of a process is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cstorch.program import Program


@dataclass
class WorkerState:
    """How far the input of this process is.

    Attributes:
        local_worker_step: batches that this worker has given.
        appliance_step: the step that the last of them is for, counted from 1 in the whole training.
        samples_streamed: samples in the batches that this worker has given.
    """

    local_worker_step: int = 0
    appliance_step: int = 0
    samples_streamed: int = 0

    @classmethod
    def get_worker_state(cls) -> WorkerState:
        """Return how far the input of this process is."""
        return get_worker_state()

    @classmethod
    def configure(cls, worker_ckpt: WorkerState) -> None:
        """Continue at the position of another state."""
        vars(get_worker_state()).update(vars(worker_ckpt))

    def add(self, samples: int, position: int) -> None:
        """A batch was given: so many samples, for the step that has `position` steps before it."""
        self.local_worker_step += 1
        self.samples_streamed += samples
        self.appliance_step = position + 1

    @contextmanager
    def at(self, steps: int, batch_size: int) -> Iterator[None]:
        """Report in the body what one worker would that has given the batches of so many steps."""
        before = vars(self).copy()
        self.local_worker_step = self.appliance_step = steps
        self.samples_streamed = steps * batch_size
        try:
            yield
        finally:
            vars(self).update(before)

    @property
    def global_worker_step(self) -> int:
        """Another name of `appliance_step`."""
        return self.appliance_step


def get_worker_state() -> WorkerState:
    """How far the input of this process is; loaders of programs keep it with their own position."""
    return Program.current().part(WorkerState)
