"""The position of this process in its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cstorch.program import Program


@dataclass
class WorkerState:
    """The position of this process in its input.

    Attributes:
        local_worker_step: Number of batches that this worker has streamed.
        appliance_step: Step of the last batch, counted from 1 over the whole training.
        samples_streamed: Number of samples that this worker has streamed.
    """

    local_worker_step: int = 0
    appliance_step: int = 0
    samples_streamed: int = 0

    @classmethod
    def get_worker_state(cls) -> WorkerState:
        """Return the position of this process in its input."""
        return get_worker_state()

    @classmethod
    def configure(cls, worker_ckpt: WorkerState) -> None:
        """Continue at the position of another state."""
        vars(get_worker_state()).update(vars(worker_ckpt))

    def add(self, samples: int, position: int) -> None:
        """Record a batch of `samples` samples for the step after `position` steps."""
        self.local_worker_step += 1
        self.samples_streamed += samples
        self.appliance_step = position + 1

    @contextmanager
    def at(self, steps: int, batch_size: int) -> Iterator[None]:
        """Report in the body the position of a single worker after `steps` steps."""
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
    """Return the position of this process in its input, which loaders of programs save with their own."""
    return Program.current().part(WorkerState)
