"""Predictions as `predict` gives them: of chosen names, example by example, no more than were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from estimator.backend import Batches
from estimator.errors import CallError, InputFnError
from estimator.spec import SINGLE


def chosen_predictions(
    batches: Batches,
    keys: Sequence[str] | None,
    single: bool,
    num_samples: int | None,
    *,
    ends: bool,
) -> Iterator[Any]:
    """Examples or batches of the chosen predictions.

    Args:
        batches: What a backend gives.
        keys: Names of the predictions; None for all.
        single: Examples; else batches.
        num_samples: At most so many examples in all; None for all.
        ends: `batches` ends by itself behind the last of them, and is read to its end: a run on the CS system
            that is closed before counts as stopped.

    Raises:
        CallError: there is no prediction of such a name.
        InputFnError: predictions are no examples.
    """
    left = num_samples
    # An error here ends the run too: its traceback would keep the run, and the system, open.
    with closing(batches):
        for batch in batches:
            chosen = _chosen(batch, keys)
            size = _length(chosen) if single or left is not None else 0
            if left is not None:
                size = min(size, left)
                chosen = {name: value[:size] for name, value in chosen.items()}
                left -= size
            if single:
                for index in range(size):
                    yield _unwrapped({name: value[index] for name, value in chosen.items()})
            else:
                yield _unwrapped(chosen)
            if left == 0 and not ends:
                return


def _chosen(batch: dict[str, np.ndarray], keys: Sequence[str] | None) -> dict[str, np.ndarray]:
    if keys is None:
        return batch
    unknown = [key for key in keys if key not in batch]
    if unknown:
        raise CallError(f"predict_keys has '{unknown[0]}', the model predicts {', '.join(batch)}")
    return {key: batch[key] for key in keys}


def _length(batch: Mapping[str, np.ndarray]) -> int:
    lengths = {name: value.shape[0] if value.ndim else 0 for name, value in batch.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InputFnError(
            f"predictions must have the batch as first dimension, all of one size; got sizes {lengths}. "
            "Use yield_single_examples=False for predictions of a whole batch"
        )
    return next(iter(lengths.values()))


def _unwrapped(prediction: dict[str, Any]) -> Any:
    return prediction.get(SINGLE, prediction)
