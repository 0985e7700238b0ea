"""Datasets and samplers for loaders: synthetic samples, the share of a worker, restartable loaders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils import _pytree as pytree

from cstorch.errors import InputError
from cstorch.job import get_streaming_rank, is_streamer, num_streamers

pad_index = -1
"""Index of a padding sample, with which `DistributedSampler(pad_last=True)` fills the last batch."""


class SyntheticDataset(torch.utils.data.Dataset):
    """Synthetic samples, the same each time for an index.

    Args:
        sample_spec: Nest of tensors, or of functions that return one for an index.
        num_samples: Number of samples; None for 2**63 - 1.

    Raises:
        InputError: The nest has no tensor, or the number is not positive.
    """

    def __init__(self, sample_spec: Any, num_samples: int | None = None) -> None:
        if num_samples is not None and num_samples < 1:
            raise InputError(f"num_samples is {num_samples}, expected 1 or more, or None")
        self._leaves, self._spec = pytree.tree_flatten(sample_spec)
        wrong = [x for x in self._leaves if not isinstance(x, torch.Tensor) and not callable(x)]
        if wrong or not self._leaves:
            raise InputError(
                f"the sample has {wrong[0]!r}, expected tensors or functions of an index"
                if wrong
                else "the sample is empty, expected a nest of tensors or functions of an index"
            )
        self._length = (2**63 - 1) if num_samples is None else num_samples

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self._length))

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf(index) for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


class DistributedSampler(torch.utils.data.Sampler):
    """The indices of this worker: batch b, counted over all epochs, goes to worker b modulo their number.

    The system takes batches from the workers in rotation, so it gets the batches of a single process,
    whatever the number of workers. Epochs of a worker may differ by a batch. A chief that streams nothing has
    all indices, because it counts a whole epoch; so has the only worker that reads an evaluation.

    It yields indices as the `sampler` of a torch `DataLoader`, and lists of them as its `batch_sampler`.

    Args:
        data_source: The dataset.
        shuffle: Draw another order in every epoch.
        seed: Seed of the order.
        shard: Omit the batches of other workers.
        batch_size: Samples in a batch. None: samples instead of batches are distributed, and every epoch
            begins with the first worker.
        start_index: Samples that all workers have read before, in a run that is continued.
        drop_last: Drop samples that fill no batch, or without `batch_size` those that not every worker gets.
        num_samples: Samples in an epoch, the first of its order; None for all.
        pad_last: Fill the last batch with `pad_index` instead of dropping samples or ending with a part.

    Raises:
        InputError: A number is negative, or `drop_last` and `pad_last` are both set.
    """

    def __init__(
        self,
        data_source: Sequence[Any],
        shuffle: bool = True,
        seed: int | None = None,
        start_index: int = 0,
        shard: bool = True,
        batch_size: int | None = None,
        drop_last: bool = True,
        num_samples: int | None = None,
        pad_last: bool = False,
    ) -> None:
        if start_index < 0 or (num_samples is not None and num_samples < 1):
            raise InputError(
                f"start_index is {start_index} and num_samples {num_samples}, expected 0 or more, and 1 or "
                "more or None"
            )
        if pad_last and batch_size is None:
            raise InputError("pad_last is True without a batch_size, expected the size of the batch to fill")
        self._length = len(data_source)
        self._shuffle, self._seed = shuffle, seed or 0
        self._shard, self._batch = shard, batch_size
        self._drop_last, self._pad_last = drop_last, pad_last
        self._num_samples = num_samples
        self._epoch = 0
        self._read_before = start_index
        self._in_batches = False

    @property
    def distributes_batches(self) -> bool:
        """True if the batches of all workers together are those of a single one, whatever their number."""
        return self._shard and self._batch is not None

    def set_state(self, start_index: int) -> None:
        """Continue after this many samples of all workers and epochs, in the next iteration."""
        self._epoch, self._read_before = 0, start_index

    def yield_batches(self) -> None:
        """Yield lists of indices from now on: a loader takes this sampler as its `batch_sampler`."""
        if self._batch is None:
            raise InputError(
                "the batch_sampler of a loader has no batch_size, expected the size of its batches"
            )
        self._in_batches = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; without a call, epochs count up."""
        self._epoch = epoch

    def __len__(self) -> int:
        whole = self._whole(range(self._length))
        epochs, start = divmod(self._read_before, max(1, len(whole)))
        mine = len(self._mine(whole, self._epoch + epochs, start))
        return -(-mine // self._batch) if self._in_batches and self._batch else mine

    def __iter__(self) -> Iterator[Any]:
        epochs, start = divmod(self._read_before, max(1, len(self._whole(range(self._length)))))
        epoch = self._epoch + epochs
        self._epoch, self._read_before = epoch + 1, 0
        order: Sequence[int] = range(self._length)
        if self._shuffle:
            draw = torch.Generator().manual_seed(self._seed + epoch)
            order = torch.randperm(self._length, generator=draw).tolist()
        mine = self._mine(self._whole(order), epoch, start)
        if not self._in_batches or self._batch is None:
            return iter(mine)
        return (mine[begin : begin + self._batch] for begin in range(0, len(mine), self._batch))

    def _whole(self, order: Sequence[int]) -> Sequence[int]:
        """Return the indices of an epoch for all workers together."""
        used = order[: self._num_samples]
        unit = self._batch or self._workers()[0]
        if self._pad_last:
            return [*used, *[pad_index] * (-len(used) % unit)]
        return used[: len(used) // unit * unit] if self._drop_last else used

    def _workers(self) -> tuple[int, int]:
        """Return the number of workers and the rank of this one, which are known once a run begins."""
        shared = self._shard and is_streamer()
        return (num_streamers(), get_streaming_rank()) if shared else (1, 0)

    def _mine(self, whole: Sequence[int], epoch: int, start: int) -> Sequence[int]:
        """Return the indices of this worker, without the first `start` of the epoch."""
        workers, rank = self._workers()
        batch = self._batch or 1
        # Batches of earlier epochs, and those of this epoch that were read before.
        first = (epoch * -(-len(whole) // batch) if self._batch else 0) + start // batch
        return [i for at, i in enumerate(whole[start:]) if (first + at // batch) % workers == rank]


@runtime_checkable
class RestartableDataLoader(Protocol):
    """A loader whose position programs of release 2 save and load."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position of one worker."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Continue at a position."""
        ...

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        """Combine the positions of all workers into one."""
        ...

    def deaggregate_state_dict(
        self, aggregated_state_dict: dict[str, Any], strict: bool = True
    ) -> dict[str, Any]:
        """Return this worker's position from the combined one."""
        ...


def infer_batch_size(data: Any, batch_size: int | None = None) -> int | None:
    """Return the first dimension of the tensors of a batch; None where there is no tensor with dimensions.

    Args:
        data: The batch.
        batch_size: Expected size.

    Raises:
        InputError: The sizes differ from each other, or from the expected size.
    """
    tensors = [x for x in pytree.tree_leaves(data) if isinstance(x, torch.Tensor) and x.dim()]
    sizes = sorted({x.shape[0] for x in tensors})
    if len(sizes) > 1:
        raise InputError(f"tensors of a batch have the first dimensions {sizes}, expected one batch size")
    if sizes and batch_size not in (None, sizes[0]):
        raise InputError(f"a batch has {sizes[0]} samples, expected {batch_size}")
    return sizes[0] if sizes else None
