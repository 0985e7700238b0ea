"""Input for the original's loaders: made-up samples, shards, and what a loader that restarts has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils import _pytree as pytree

from cstorch.errors import InputError
from cstorch.streaming import get_streaming_rank, is_streamer, num_streamers


class SyntheticDataset(torch.utils.data.Dataset):
    """Samples in the shapes of a description, the same for the same index.

    Args:
        sample_spec: nest of tensors, or of functions of the index that return one.
        num_samples: length; samples without end where None (`len` is 2**63 - 1).

    Raises:
        InputError: there is no tensor in the nest, or the length is not positive.
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

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._length:
            raise IndexError(index)
        leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf(index) for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._spec)


class DistributedSampler(torch.utils.data.Sampler):
    """The indices of this worker: batch b of all epochs together goes to worker b modulo their number.

    So the batches that the system takes from one worker after the other are those of one process alone,
    however many there are. Epochs of a worker may differ by a batch. A chief that streams nothing itself has
    all indices: what it counts is an epoch of the whole; so has the one worker that reads an evaluation.

    Args:
        data_source: the data set.
        shuffle: draw another order in every epoch.
        seed: of the order.
        shard: leave the others' batches out.
        batch_size: samples of a batch. None: samples, not batches, go to the workers in turn, and every
            epoch begins with the first one.
        drop_last: leave out samples that fill no batch; without batches those that not every worker gets one
            of.
    """

    def __init__(
        self,
        data_source: Sequence[Any],
        shuffle: bool = True,
        seed: int | None = None,
        shard: bool = True,
        batch_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self._length = len(data_source)
        self._shuffle, self._seed = shuffle, seed or 0
        self._shard, self._batch, self._drop_last = shard, batch_size, drop_last
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order comes next; without a call they count up."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._mine(range(self._length), self._epoch))

    def __iter__(self) -> Iterator[int]:
        order: Sequence[int] = range(self._length)
        if self._shuffle:
            draw = torch.Generator().manual_seed(self._seed + self._epoch)
            order = torch.randperm(self._length, generator=draw).tolist()
        self._epoch += 1
        return iter(self._mine(order, self._epoch - 1))

    def _mine(self, order: Sequence[int], epoch: int) -> Sequence[int]:
        """Those of this worker, which is known when a run begins: an evaluation has one reader."""
        shared = self._shard and is_streamer()
        workers, rank = (num_streamers(), get_streaming_rank()) if shared else (1, 0)
        batch = self._batch or 1
        together = self._batch or workers
        used = self._length // together * together if self._drop_last else self._length
        first = epoch * -(-used // batch) if self._batch else 0  # batches of the epochs before
        return [i for at, i in enumerate(order[:used]) if (first + at // batch) % workers == rank]


@runtime_checkable
class RestartableDataLoader(Protocol):
    """What a loader has whose position programs of release 2 save and load."""

    def __iter__(self) -> Iterator[Any]:
        """Batches."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position of one worker."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Goes to a position."""
        ...

    def aggregate_state_dict(self, worker_states: list[dict[str, Any]]) -> dict[str, Any]:
        """One position of all workers'."""
        ...

    def deaggregate_state_dict(self, aggregated_state_dict: dict[str, Any]) -> dict[str, Any]:
        """This worker's position of all workers'."""
        ...


def infer_batch_size(batch: Any) -> int | None:
    """The first dimension of the tensors of a batch; None where there is no tensor with dimensions.

    Raises:
        InputError: they differ.
    """
    tensors = [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    sizes = sorted({x.shape[0] for x in tensors})
    if len(sizes) > 1:
        raise InputError(f"tensors of a batch have the first dimensions {sizes}, expected one batch size")
    return sizes[0] if sizes else None
