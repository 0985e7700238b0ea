"""A worker of a job: its position in its input, and copies of datasets on its disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cs_toolkit.files import user_cache_dir
from cstorch.program import Program

# Where programs copy data sets to, each below the path of its source; they make the directory. The original
# has `/n0/cache` on the disks of its workers, which users cannot create on other machines. It is not in the
# directory of temporary files, where other users could make one of this name first, and change the data sets.
WORKER_CACHE_ROOT = os.environ.get("CEREBRAS_WORKER_CACHE_ROOT") or str(user_cache_dir() / "cs_worker_cache")


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


def get_dir_size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a directory, 0 if there are none; links are not followed."""
    return sum(file.lstat().st_size for file in Path(path).rglob("*") if file.is_file())


def hit_worker_cache_limit(
    src_dir: str | os.PathLike[str], dest_dir: str | os.PathLike[str]
) -> tuple[bool, int, int]:
    """Check if a directory is too large for the cache.

    Args:
        src_dir: The directory.
        dest_dir: Destination, whose present content would be replaced.

    Returns:
        True if it does not fit, its size in bytes, and the bytes that are free for it.
    """
    size = get_dir_size(src_dir)
    place = next(folder for folder in (Path(dest_dir), *Path(dest_dir).absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free + get_dir_size(dest_dir)
    return size > free, size, free
