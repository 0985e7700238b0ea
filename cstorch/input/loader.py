"""The input of a step: the torch DataLoader that an input function returns, in every worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import chain, count, islice
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from cs_runtime import input_source
from cs_runtime.errors import ShardingError
from cs_runtime.input_source import Batch, Sharding, input_facts, narrow_integers
from cs_runtime.options import RunSettings
from cs_toolkit.step import TensorSpec
from csrun.jobs.progress import Epochs
from cstorch.distributed.workers import get_worker_state
from cstorch.errors import InputError
from cstorch.input.datasets import DistributedSampler
from cstorch.input.random_state import RandomState, program_seed
from cstorch.input.skipping import later, why_made
from cstorch.input.transfer import TransferredInput
from cstorch.iterations import StepsToRun
from cstorch.job import reader_share, reading_as, watch_questions, whole_input_on_chief
from cstorch.program import Program
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.state import continue_at, steps_done
from cstorch.tracing.values import array_type, dtype_name, to_array
from input_rules.input_export import Shard

log = logging.getLogger("cstorch")

_END = object()

# Methods of the original's protocol for loaders that keep their position.
_RESTARTABLE = ("state_dict", "load_state_dict", "aggregate_state_dict", "deaggregate_state_dict")


class InputLoader:
    """The batches of an input function, for the chief, which needs their shapes, and for workers.

    Programs loop over `cstorch.utils.data.DataLoader`, which has the arguments.

    Attributes:
        first_batch_s: Seconds until the first batch was available.
        id: Number of this loader in the program, from 0.
        reported: True once the log has the report on this input.
        batches_ahead: Batches that a training run skips in addition to its completed steps; negative if the
            loaded position is before the step.
    """

    STATE_UNKNOWN = "__UNKNOWN__"
    STATE_UNAVAILABLE = "__UNAVAILABLE__"
    """Names of programs for states that no worker has sent; here the chief knows the state at every step."""

    sends_function = True
    """Workers get the input function from the chief; otherwise they run the program themselves."""

    def __init__(
        self,
        input_fn: Callable[..., Any],
        *args: Any,
        initial_step: int = 0,
        num_steps: int | None = None,
        max_steps: int | None = None,
        num_epochs: int | None = None,
        steps_per_epoch: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(input_fn):
            raise InputError(
                f"input_fn is a {type(input_fn).__name__}, expected a function that returns a "
                "torch.utils.data.DataLoader: every worker calls it"
            )
        self.input_fn, self._args, self._kwargs = input_fn, args, kwargs
        self._to_run = StepsToRun(initial_step, num_steps, max_steps, num_epochs, steps_per_epoch)
        self.initial_step = initial_step
        self.id = next(Program.current().loader_numbers)
        self.batches_ahead = 0
        self.reported = False
        self._loaded_position: int | None = None
        self._epoch: int | None = None
        self._started: tuple[RandomState, Iterator[Any]] | None = None
        self._asks_for_share = False
        self.first_batch_s = 0.0

    def steps_of_loop(self) -> int:
        """Return the steps of the next loop: those of one epoch if the program loops over the epochs."""
        steps = self.steps
        if self._epoch is not None:
            per_epoch = self.steps_per_epoch
            steps = max(0, min(per_epoch, steps - self._epoch * per_epoch))
            self._epoch = (self._epoch + 1) % self._epochs
        return steps

    def epochs_of_loop(self, first_step: int, steps: int) -> Epochs | None:
        """Return the epochs of the training run of a loop; None if the program gives no number of epochs.

        Args:
            first_step: Global step at which the loop has begun.
            steps: Number of its steps.
        """
        if self._to_run.num_epochs is None or (self._epoch is None and steps != self.steps):
            return None
        index = 0 if self._epoch is None else (self._epoch - 1) % self._epochs
        first_step -= index * self.steps_per_epoch
        return Epochs(self._epochs, self.steps_per_epoch, first_step, first_step + self.steps)

    def __len__(self) -> int:
        return self.steps

    @property
    def num_epochs(self) -> int:
        """Number of epochs, for a program that loops over them itself; 1 if the steps are given."""
        self._epoch = 0
        return self._epochs

    @property
    def _epochs(self) -> int:
        return self._to_run.num_epochs or 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch; all steps if their number is given."""
        return self._to_run.per_epoch(self._loader) if self._to_run.in_epochs else self.steps

    @property
    def steps(self) -> int:
        """Number of steps to run."""
        if Program.current().trains:
            return self._to_run.of(self._loader)
        return self._to_run.of_evaluation(self._loader)

    @property
    def dataloader(self) -> Any:
        """The loader that the input function returns on this task."""
        return self._loader

    @property
    def is_restartable(self) -> bool:
        """True if the program's loader has a state with its position."""
        return all(callable(getattr(self._loader, name, None)) for name in _RESTARTABLE)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the input: the number of steps, with one batch each.

        A restartable loader adds its own state, as if one worker had streamed all batches.
        """
        state: dict[str, Any] = {"steps": steps_done()}
        if self.is_restartable:
            position = self._loaded_position
            read = steps_done() + self.batches_ahead if position is None else position
            with get_worker_state().at(read, self.batch_size):
                own = self._loader.aggregate_state_dict([self._loader.state_dict()])
            state = {**own, **state}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Continue the next training run at a saved position.

        The number of streamed samples is the position, independent of the step: programs increase it to skip
        samples. Without it the input continues at the step.

        Args:
            state_dict: Return value of `state_dict`, of this toolkit or of the original.
            strict: Raise an error if the position is missing, instead of continuing without it.

        Raises:
            InputError: The state has neither a number of steps nor of samples.
        """
        samples = _samples_streamed(state_dict)
        if strict and samples is None and "steps" not in state_dict:
            raise InputError(
                f"the state of the input has {sorted(state_dict)}, expected 'steps' or 'samples_streamed'; "
                "load it with strict=False to start from the step of the optimizer"
            )
        if "steps" in state_dict:
            continue_at(int(state_dict["steps"]))
        if samples is not None:
            self._loaded_position, rest = divmod(samples, self.batch_size)
            if rest:
                log.warning(
                    "the input continues %d samples before the loaded position: at a whole batch of %d",
                    rest,
                    self.batch_size,
                )

    def begin_training(self) -> None:
        """Make the training run that begins at this step read from the loaded position on."""
        if self._loaded_position is not None:
            self.batches_ahead = self._loaded_position - steps_done()
            self._loaded_position = None

    @property
    def batch_size(self) -> int:
        """First dimension of the first tensor with dimensions in a batch; 1 if there is none."""
        return next((t.shape[0] for t in self._tensors if t.ndim), 1)

    def batch_without_values(self) -> Any:
        """Return the nest of a batch, with tensors of the device that have no values."""
        return pytree.tree_map_only(torch.Tensor, DeviceTensor, self.first)

    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return types and shapes of the tensors in a batch."""
        specs = enumerate(map(array_type, self._tensors))
        return tuple(TensorSpec(f"input_{i}", dtype, shape) for i, (dtype, shape) in specs)

    def input_facts(self) -> dict[str, str]:
        """Return the facts that identify the input: program, function and tensors."""
        tensors = (f"{s.name} {s.dtype}{list(s.shape)}" for s in self.inputs())
        return input_facts("step", self.input_fn, tensors)

    def sharding(self) -> Sharding:
        """Return how the share of a worker is determined; see `DistributedSampler` for `global`."""
        samplers = (getattr(self._loader, name, None) for name in ("batch_sampler", "sampler"))
        if any(isinstance(x, DistributedSampler) and x.distributes_batches for x in samplers):
            return "global"
        _ = self.first
        return "shards" if self._asks_for_share else "program"

    def part(self, shard: Shard, first: int, stride: int) -> Iterator[Batch]:
        """Yield the batches `first`, `first + stride` and so on of a shard.

        Raises:
            ShardingError: The program determines its share by itself.
        """
        sharding = self.sharding()
        if sharding == "program":
            raise ShardingError
        # A position b of the input is in shard b modulo the number of shards, and the loaded position may be
        # ahead of the step. Shares of a single reader's batches may have any number.
        ahead = self.batches_ahead
        if sharding == "global":
            count, stride = shard.count * stride, 1
            skip, index = divmod(shard.index + shard.count * first + ahead, count)
        else:
            count = shard.count
            turns, index = divmod(shard.index + ahead, count)
            skip = first + turns
        loader = copy(self)
        loader.batches_ahead, loader._started = 0, None
        vars(loader).pop("_loader", None)
        return islice(loader._batches_as(count, index, skip), 0, None, stride)

    def _batches_as(self, count: int, index: int, skip: int) -> Iterator[Batch]:
        """Yield the batches of one of `count` readers, while others may read in this process."""
        batches = self.batches(skip)
        while True:
            with reading_as(count, index):
                batch = next(batches)
            yield batch

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield this task's batches as arrays, without the first `skip` ones; a loader is repeated."""
        state = get_worker_state()
        for number, arrays in enumerate(self.arrays(self.endless(skip)), start=skip):
            state.add(self.batch_size, number)
            yield arrays

    def endless(self, skip: int = 0) -> Iterator[Any]:
        """Yield batches of the loader, which is repeated when it ends.

        Args:
            skip: Number of batches to skip, without making them if the loader allows that.

        Raises:
            InputError: The loader has no batch.
        """
        skip = max(0, skip + self.batches_ahead)
        with RandomState(self.seed), whole_input_on_chief():
            why = why_made(self._loader) if skip else ""
        with input_source.log_skip(skip, why):
            batches = islice(self._repeat(), skip, None) if why else self._repeat(skip)
            first = next(batches)
        yield first
        yield from batches

    def _repeat(self, skip: int = 0) -> Iterator[Any]:
        numbers = RandomState(self.seed)
        with numbers, whole_input_on_chief():
            loader = self.make_loader()
        started, self._started = self._started, None
        if skip or started is None or loader is not self._loader:
            with numbers:
                _seed_order(self.seed)
            started = None
        else:
            numbers = started[0]
        left: Callable[[], int]
        for epoch in count():
            with numbers, whole_input_on_chief():
                if started is not None:
                    batches, left, started = started[1], int, None
                else:
                    _set_epoch(loader, epoch)
                    batches, left = later(loader, skip) if skip else (iter(loader), int)
                batch = next(batches, _END)
                skipped, skip = left(), skip - left()
            if batch is _END and skipped:
                continue
            if batch is _END:
                raise InputError(f"epoch {epoch} of the input has no batch, expected one or more")
            while batch is not _END:
                yield batch
                with numbers, whole_input_on_chief():
                    batch = next(batches, _END)

    @cached_property
    def seed(self) -> int:
        """Seed of the random numbers that the input draws: that of the program when it is first read."""
        return program_seed()

    def transfer(self, settings: RunSettings) -> TransferredInput:
        """Return the input as a worker needs it for a run with these settings."""
        facts = {name: text for name, text in self.input_facts().items() if "tensor" not in name}
        return TransferredInput(
            self.input_fn, self._args, self._kwargs, settings, facts, self.seed, self.batches_ahead
        )

    def arrays(self, batches: Iterable[Any]) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the tensors of batches as arrays to stream.

        Raises:
            InputError: A batch has other tensors than the first one.
        """
        specs = self.inputs()
        for batch in batches:
            yield tuple(_to_arrays(_leaves(batch), specs))

    @cached_property
    def _loader(self) -> Any:
        with RandomState(self.seed), whole_input_on_chief(), watch_questions() as questions:
            loader = self.make_loader()
        self._asks_for_share |= bool(questions)
        return loader

    @cached_property
    def first(self) -> Any:
        """The first batch, whose types and shapes all others have; None if the loader has none."""
        began_s = time.perf_counter()
        with watch_questions() as questions:
            loader, numbers = self._loader, RandomState(self.seed)
            with numbers, whole_input_on_chief():
                _seed_order(self.seed)
                _set_epoch(loader, 0)
                batches = iter(loader)
                first = next(batches, None)
        self._asks_for_share |= bool(questions)
        self.first_batch_s = time.perf_counter() - began_s
        # A dataset in this process may have its own random generator, or count its samples, so that reading
        # the first batch twice would change all later ones. Worker processes have copies of the dataset.
        if first is not None and not getattr(loader, "num_workers", 0):
            self._started = numbers, chain([first], batches)
        return first

    @cached_property
    def _tensors(self) -> list[torch.Tensor]:
        found = _leaves(self.first)
        if not found:
            raise InputError("the input function gives no batch with a tensor, expected one or more")
        return found

    def make_loader(self) -> Any:
        """Call the input function, and return its loader.

        Raises:
            InputError: The return value is no loader.
        """
        loader = self.input_fn(*self._args, **self._kwargs)
        if not hasattr(loader, "__iter__"):
            raise InputError(
                f"the input function returns a {type(loader).__name__}, expected a "
                "torch.utils.data.DataLoader"
            )
        if isinstance(sampler := getattr(loader, "batch_sampler", None), DistributedSampler):
            sampler.yield_batches()
        return loader


def _samples_streamed(state: Mapping[str, Any]) -> int | None:
    """Return the samples that all workers have streamed; some loaders save a list of what each one has."""
    if "samples_streamed" in state:
        return int(state["samples_streamed"])
    workers = state.get("all_worker_states")
    return int(sum(worker["samples_streamed"] for worker in workers)) if workers else None


def _to_arrays(tensors: Sequence[torch.Tensor], specs: Sequence[TensorSpec]) -> Iterator[np.ndarray]:
    if len(tensors) != len(specs):
        raise InputError(f"a batch has {len(tensors)} tensors, expected {len(specs)} as in the first one")
    for tensor, spec in zip(tensors, specs, strict=True):
        if array_type(tensor) != (spec.dtype, spec.shape):
            raise InputError(
                f"a batch has {dtype_name(tensor.dtype)}{list(tensor.shape)} for {spec.name}, expected "
                f"{spec.dtype}{list(spec.shape)} as in the first one; give the torch DataLoader "
                "drop_last=True, and pad samples to one size"
            )
        yield narrow_integers(spec.name, to_array(tensor))


def _seed_order(seed: int) -> None:
    """Seed the order in which this worker reads its data; random changes of the data are the same for all."""
    torch.manual_seed(seed + 1 + reader_share()[1])


def _leaves(batch: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor)]


def _set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of our sampler, from which the first batch, or an earlier run, may have read before."""
    for sampler in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
