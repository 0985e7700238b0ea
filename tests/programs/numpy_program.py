"""A program whose front end is NumPy: `numpy_program.py CS_IP MODEL_DIR STEPS [EXECUTION SAVE_EVERY]`.

Its step is a CIRH text, its input a generator of arrays, its checkpoint an npz file. The rest comes from
`cs_runtime`, as for any front end.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from cs_runtime import tasks, terminal
from cs_runtime.exits import report_errors
from cs_runtime.input_source import Sharding, input_facts, narrow_integers
from cs_runtime.options import RunSettings
from cs_runtime.program import State, StepProgram
from cs_runtime.progress import StepEvents
from cs_runtime.run_files import write_params
from cs_runtime.training import train
from cs_toolkit.execution_options import ExecutionOptions
from cs_toolkit.files import replace_file
from cs_toolkit.step import TensorSpec
from input_rules.input_export import Shard

log = logging.getLogger("numpy_program")

STEP = Path(__file__).parent / "steps" / "linear.mlir"
BATCH, FEATURES, RATE = 8, 4, 0.01


def batch(position: int) -> tuple[np.ndarray, np.ndarray]:
    """Features, and labels that are a sum of them, rounded."""
    features = np.random.default_rng(position).standard_normal((BATCH, FEATURES)).astype(np.float32)
    return features, features.sum(axis=1).round().astype(np.int64)


class NumpyFrontEnd:
    """Implements `cs_runtime.program.FrontEnd`."""

    def __init__(self, model_dir: Path) -> None:
        self._checkpoint = model_dir / "state.npz"

    def program(self) -> StepProgram:
        from cgc.cirh.text import parse_module  # here, because workers load no compiler
        from cs_runtime.step_program import step_program

        return step_program(parse_module(STEP.read_text()), "train", BATCH, ["features", "labels"])

    def inputs(self) -> tuple[TensorSpec, ...]:
        return TensorSpec("input_0", "float32", (BATCH, FEATURES)), TensorSpec("input_1", "int32", (BATCH,))

    def input_facts(self) -> Mapping[str, str]:
        return input_facts("train", batch, (f"{s.name} {s.dtype}{list(s.shape)}" for s in self.inputs()))

    def sharding(self) -> Sharding:
        return "global"

    def batches(self, skip: int) -> Iterator[tuple[np.ndarray, ...]]:
        task = tasks.current()
        position = task.index + skip * task.num_workers
        while True:
            features, labels = batch(position)
            yield features, narrow_integers("labels", labels)
            position += task.num_workers

    def part(self, shard: Shard, first: int, stride: int) -> Iterator[tuple[np.ndarray, ...]]:
        for number in count(first, stride):
            features, labels = batch(shard.index + shard.count * number)
            yield features, narrow_integers("labels", labels)

    def check_checkpoint(self) -> None: ...

    def initial_state(self) -> State:
        if self._checkpoint.exists():
            with np.load(self._checkpoint) as saved:
                return dict(saved)
        return {
            "state.model.w": np.zeros((FEATURES, 1), np.float32),
            "state.optimizer.lr": np.full((), RATE, np.float32),
            "state.global_step": np.zeros((), np.int64),
        }

    saves_between_steps = False

    def save(self, step: int, state: Mapping[str, np.ndarray]) -> bool:
        content = io.BytesIO()
        np.savez(content, **state)
        replace_file(self._checkpoint, content.getvalue())
        replace_file(self._checkpoint.with_name(f"state-{step}.npz"), content.getvalue())
        log.info("saved step %d", step)
        return False


class Scalars:
    """Keeps what goes to TensorBoard."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.values[step] = dict(values)


@report_errors()
def main(cs_ip: str, model_dir: str, steps: str, execution: Any = "pipelined", save_every: str = "0") -> None:
    terminal.configure_logging("numpy_program")
    params: dict[str, Any] = {"steps": int(steps), "rate": RATE}
    settings = RunSettings(
        "train",
        Path(model_dir),
        BATCH,
        cs_ip=cs_ip,
        steps=int(steps),
        params=params,
        options=ExecutionOptions(execution=execution),
        save_every_steps=int(save_every) or None,
    )
    write_params(settings.model_dir, params)
    shown = Scalars()
    result = train(NumpyFrontEnd(settings.model_dir), settings, StepEvents(shown, 1, BATCH))
    if result is None:  # in a worker
        return
    losses = {step: values["loss"] for step, values in shown.values.items()}
    loaded = sorted({name.partition(".")[0] for name in sys.modules})
    print(json.dumps({"step": result.final_step, "losses": losses, "loaded": loaded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
