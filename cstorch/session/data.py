"""The input of a session: batches of a loader that every task of the job makes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

from cstorch.errors import InputError
from cstorch.input import loader
from cstorch.session.environment import use_cs

_MANY_STEPS = 1 << 20
"""Of an epoch whose end is not known; the program's loop ends where its own loader does."""


class DataLoader(loader.DataLoader):
    """A loader whose batches are described in the loop of a session, and streamed by the workers.

    Where this process computes on its own CPU its batches are those of the loader.

    Args:
        loader: a `torch.utils.data.DataLoader`, or what gives batches each time it is iterated over.
        use_parallel_loader: workers always stream beside the steps; kept for the program, without effect.
    """

    handed_over = False

    def __init__(self, loader: Any, use_parallel_loader: bool = True) -> None:
        if not hasattr(loader, "__iter__"):
            raise InputError(
                f"dataloader() got a {type(loader).__name__}, expected a torch.utils.data.DataLoader"
            )
        super().__init__(_given, loader)
        self.use_parallel_loader = use_parallel_loader

    def __iter__(self) -> Iterator[Any]:
        from cstorch.session.session import batches_of

        return batches_of(self) if use_cs() else iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_args":
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self._args[0], name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def steps(self) -> int:
        """Batches of one epoch; many where the loader does not know."""
        return self.epoch_steps(counted=False)

    def epoch(self) -> Iterator[Any]:
        """As many entries as the loader has batches; it is read itself where it does not know its length."""
        try:
            return iter(repeat(None, len(self)))
        except TypeError:  # of an iterable dataset
            return iter(self._loader)

    def epoch_steps(self, *, counted: bool) -> int:
        """Batches of one epoch.

        Args:
            counted: read a loader that does not know its length once to its end; else many are assumed.
        """
        try:
            return len(self)
        except TypeError:
            return sum(1 for _ in self._loader) if counted else _MANY_STEPS


def _given(loader: Any) -> Any:
    """The input function: the same in all tasks, whatever their loaders are."""
    return loader


def dataloader(loader: Any, use_parallel_loader: bool = True) -> DataLoader:
    """A loader for the loop of a session; see `DataLoader`."""
    return loader if isinstance(loader, DataLoader) else DataLoader(loader, use_parallel_loader)
