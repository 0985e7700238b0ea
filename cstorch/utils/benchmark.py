"""Measures an input pipeline on this machine; `cs_input_analyzer` also suggests improvements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cstorch.compatibility import log_unused
from cstorch.input.datasets import infer_batch_size


@dataclass
class EpochMetrics:
    """Measurements of an epoch.

    Attributes:
        steps: Batches.
        samples: Samples in them; 0 where batches have no tensors.
        seconds: Seconds from the first request to the last batch.
        first_batch_s: Seconds until the first batch.
        sampled_s: Seconds of single batches, by step, at the sampled steps.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    first_batch_s: float = 0.0
    sampled_s: dict[int, float] = field(default_factory=dict)


@dataclass
class DataLoaderMetrics:
    """Measurements of a loader.

    Attributes:
        making_s: Seconds to make the loader.
        epochs: Its epochs.
    """

    first_batch_s: float
    epochs: list[EpochMetrics]

    @property
    def samples_per_s(self) -> float:
        """Samples per second of all epochs."""
        return sum(e.samples for e in self.epochs) / max(sum(e.seconds for e in self.epochs), 1e-9)

    def __str__(self) -> str:
        lines = [f"made in {self.first_batch_s:.3f} s, {self.samples_per_s:.1f} samples/s"]
        lines += [
            f"epoch {number}: {epoch.steps} batches with {epoch.samples} samples in {epoch.seconds:.3f} s, "
            f"the first after {epoch.first_batch_s:.3f} s"
            for number, epoch in enumerate(self.epochs)
        ]
        return "\n".join(lines)


def benchmark_dataloader(
    input_fn: Callable[..., Iterable[Any]],
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    sampling_frequency: int | None = None,
    profile_activities: list[str] | None = None,
    print_metrics: bool = True,
) -> DataLoaderMetrics:
    """Measure a loader on this machine.

    Args:
        input_fn: Returns the loader; a `cstorch.utils.data.DataLoader` is measured by its own loader.
        num_epochs: Number of epochs; None for 1.
        steps_per_epoch: Batches of an epoch; None for all.
        sampling_frequency: Interval of batches whose times are kept, besides the first; None for 100.
        profile_activities: Further measurements of the original; without effect, which is logged.
        print_metrics: Print the result.
    """
    log_unused("benchmark_dataloader()", {"profile_activities": profile_activities})
    began_s = time.perf_counter()
    loader = input_fn()
    loader = getattr(loader, "dataloader", loader)
    first_batch_s = time.perf_counter() - began_s
    epochs = [_epoch(loader, steps_per_epoch, sampling_frequency or 100) for _ in range(num_epochs or 1)]
    metrics = DataLoaderMetrics(first_batch_s, epochs)
    if print_metrics:
        print(metrics)  # noqa: T201 - the caller has asked for it
    return metrics


def _epoch(loader: Iterable[Any], steps: int | None, frequency: int) -> EpochMetrics:
    found = EpochMetrics()
    began_s = before_s = time.perf_counter()
    for batch in loader:
        now_s = time.perf_counter()
        if found.steps == 0:
            found.first_batch_s = now_s - began_s
        if found.steps % frequency == 0:
            found.sampled_s[found.steps] = now_s - before_s
        found.steps += 1
        found.samples += infer_batch_size(batch) or 0
        found.seconds = now_s - began_s
        if found.steps == steps:
            break
        before_s = time.perf_counter()
    return found
