"""The input function of an example program, read as a worker reads it, interleaved: bare and by the analyzer.

    python -m benchmarks.input_reader MODEL

What measures in `cs_input_analyzer` starts it (see `input_rules.input_export`) and reads it as a copy of an
analysis. In every second turn the batches do not get there: a bare loop reads and counts them. It is the same
iterator of the same process, as what autotune has chosen differs from process to process by more than the
instrumentation costs. The file that RATES_VARIABLE names gets a line with both rates, samples a second, for
every two turns.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.example_step import MODELS
from input_rules.input_export import InputProgram, Shard, export_input

RATES_VARIABLE = "CS_BENCH_RATES"
TURN_S = 0.4
PARAMS = {
    "fc_mnist": "params_fc_mnist",
    "resnet": "params_resnet_tiny",
    "unet": "params_unet_tiny",
    "bert": "params_bert_tiny",
    "gpt2": "params_gpt2_tiny",
    "transformer": "params_transformer_tiny",
}
"""By example program the parameter file that it has by default."""


def program(model: str) -> InputProgram:
    """The training input of an example program."""
    from cs_toolkit.loader import load_model
    from estimator import CSRunConfig, import_tensorflow
    from estimator.input.dataset import InputSource, read

    import_tensorflow()
    data, schema = (import_module(f"models.{model}.tf.{part}") for part in ("data", "params"))
    path = MODELS / model / "tf" / "configs" / f"{PARAMS[model]}.yaml"
    params: dict[str, Any] = load_model(path, schema.Params).plain()
    source = InputSource(data.train_input_fn, "train", params, CSRunConfig(tf_random_seed=1), {})

    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        return in_turns(read(source, 1, 0), Path(os.environ[RATES_VARIABLE]))

    return InputProgram("tensorflow", data.train_input_fn, lambda shard: source.call(), batches, seed=1)


def in_turns(inner: Iterator[tuple[Any, ...]], file: Path) -> Iterator[tuple[Any, ...]]:
    """The batches of every second turn; the others are read here."""
    with file.open("w", buffering=1) as rates:
        while True:
            began, passed, samples = time.monotonic(), 0.0, 0
            while passed < TURN_S:
                batch = next(inner)
                samples += len(batch[0])
                yield batch
                passed = time.monotonic() - began
            instrumented = samples / passed
            began, passed, samples = time.monotonic(), 0.0, 0
            while passed < TURN_S:
                samples += len(next(inner)[0])
                passed = time.monotonic() - began
            rates.write(f"{samples / passed} {instrumented}\n")


if __name__ == "__main__":
    export_input(program(sys.argv[1]))
