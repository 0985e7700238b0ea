"""What an evaluation leaves, wherever it has run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimator.events import EventWriter

log = logging.getLogger("estimator")


def report(model_dir: Path, results: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Logs the results of an evaluation and writes them as events beside those of the training."""
    step = int(results["global_step"])
    text = ", ".join(f"{key} = {results[key]}" for key in sorted(results))
    log.info("Saving dict for global step %d: %s", step, text)
    scalars = {key: float(value) for key, value in results.items() if np.ndim(value) == 0}
    scalars.pop("global_step")
    with EventWriter(eval_dir(model_dir, name)) as events:
        events.scalars(step, scalars)
    return dict(results)


def eval_dir(model_dir: Path, name: str | None) -> Path:
    """Where the events of an evaluation go."""
    return model_dir / (f"eval_{name}" if name else "eval")
