"""Time of a training step: the compiled program in the system's engine against three ways of TensorFlow.

All train the same model_fn on the same batches in memory. The contenders take turns, in rounds; a
ratio is the median over the rounds of our time over the best of the others in that round. All get the CPUs
of this process.

    python -m benchmarks.step_time [MODEL ...] [--mid-size] [--rounds N]

The small models have their tiny parameter files. `--mid-size` measures others of each family, 10 to 100 times
as large, where arithmetic outweighs what is paid for each op; `python -m benchmarks` both. The wall clock
decides, as for a user; the last two columns tell why: CPU milliseconds of ours and their ratio to the best
other, which a busy machine disturbs less. TensorFlow's threads also burn some while they look for work.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_loop import aligned, stepping
from benchmarks.harness import Row, interleave, machine

MODELS = Path(__file__).resolve().parent.parent / "models"
CHUNK = 8
"""Different batches; our engine gets them stacked, and makes that many steps a call."""

SECONDS = 0.25
"""The approximate duration of one measurement."""

ROUNDS = 9
MID_SIZE_ROUNDS = 5
OURS = "ours"
WORST = 1.2
"""The largest ratio that a model may have."""

Run = Callable[[int], None]
"""Makes a number of training steps."""

Figures = dict[str, list[float]]
"""By contender a figure of each round."""


@dataclass(frozen=True)
class Workload:
    """The model and the batches that are trained.

    Attributes:
        model_fn: of a user's program.
        params: its parameters.
        batches: arrays of each batch, flat.
        pack: features and labels from flat tensors.
    """

    model_fn: Callable[..., Any]
    params: dict[str, Any]
    batches: list[tuple[np.ndarray, ...]]
    pack: Callable[[Sequence[Any]], Any]

    def train_spec(self, tensors: Sequence[Any]) -> Any:
        """Builds the training step in the default graph."""
        import tensorflow as tf

        tf.compat.v1.train.get_or_create_global_step()
        features, labels = self.pack(tensors)
        return self.model_fn(features, labels, "train", self.params)


@dataclass(frozen=True)
class Case:
    """A line of the table."""

    name: str
    load: Callable[[], Workload]


def example(
    folder: str, params_file: str, changes: dict[str, dict[str, Any]] | None = None, name: str | None = None
) -> Case:
    """An example program of `models/` with a parameter file, and changes to groups of it."""

    def load() -> Workload:
        import tensorflow as tf

        from cs_toolkit.loader import load_model

        model, data, params = (import_module(f"models.{folder}.tf.{m}") for m in ("model", "data", "params"))
        values = load_model(MODELS / folder / "tf" / "configs" / f"{params_file}.yaml", params.Params).plain()
        for group, own in (changes or {}).items():
            values[group].update(own)
        dataset = data.train_input_fn(values)
        batches = [
            tuple(part.numpy() for part in tf.nest.flatten(batch)) for batch in dataset.repeat().take(CHUNK)
        ]
        spec = dataset.element_spec
        return Workload(
            model.model_fn, values, batches, lambda tensors: tf.nest.pack_sequence_as(spec, list(tensors))
        )

    return Case(name or params_file.removeprefix("params_"), load)


def small_cnn(batch_size: int = 32, filters: Sequence[int] = (16, 32)) -> Workload:
    """The network of `benchmarks.small_cnn` on noise."""
    from benchmarks import small_cnn as cnn
    from models.common.tf.params import Optimizer

    random = np.random.default_rng(0)
    batches: list[tuple[np.ndarray, ...]] = [
        (
            random.random((batch_size, cnn.SIDE, cnn.SIDE, 1), np.float32),
            random.integers(0, cnn.CLASSES, batch_size).astype(np.int32),
        )
        for _ in range(CHUNK)
    ]
    optimizer = Optimizer(optimizer_type="adam", learning_rate=1e-3).model_dump()
    return Workload(cnn.model_fn, {"optimizer": optimizer, "filters": filters}, batches, tuple)


CASES = (
    Case("small_cnn", small_cnn),
    example("resnet", "params_resnet_tiny"),
    example("unet", "params_unet_tiny"),
    example("fc_mnist", "params_fc_mnist"),
    example("bert", "params_bert_tiny"),
    example("gpt2", "params_gpt2_tiny"),
    example("transformer", "params_transformer_tiny"),
)
"""The models that are measured, a line each."""

_TOKENS = {"batch_size": 8, "max_sequence_length": 128}
_LAYERS = {"hidden_size": 256, "num_hidden_layers": 4, "filter_size": 1024, "vocab_size": 8192}

MID_SIZE = (
    Case("cnn_mid", partial(small_cnn, 128, (32, 64))),
    example(
        "resnet",
        "params_resnet_tiny",
        {"model": {"image_size": 32, "filters": [16, 32, 64], "stem_max_pool": False}},
        "resnet_mid",
    ),
    example(
        "unet",
        "params_unet_tiny",
        {
            "train_input": {"batch_size": 8},
            "model": {
                "image_shape": [64, 64, 1],
                "encoder_filters": [16, 32, 64, 128],
                "decoder_filters": [64, 32, 16],
            },
        },
        "unet_mid",
    ),
    example(
        "bert",
        "params_bert_tiny",
        {
            "train_input": {**_TOKENS, "max_predictions_per_seq": 20},
            "model": {**_LAYERS, "max_position_embeddings": 128},
        },
        "bert_mid",
    ),
    example(
        "gpt2",
        "params_gpt2_tiny",
        {"train_input": _TOKENS, "model": {**_LAYERS, "max_position_embeddings": 128}},
        "gpt2_mid",
    ),
    example(
        "transformer",
        "params_transformer_tiny",
        {
            "train_input": {"batch_size": 8, "src_max_sequence_length": 64, "tgt_max_sequence_length": 64},
            "model": {
                "d_model": 256,
                "d_kv": 64,
                "d_ff": 1024,
                "src_vocab_size": 4096,
                "tgt_vocab_size": 4096,
            },
        },
        "transformer_mid",
    ),
)
"""Larger ones of each family."""


def rows() -> list[Row]:
    """A row for each model, one for all the tiny ones, and one for each larger model."""
    found = [(case, measured(case, ROUNDS)[0]) for case in CASES]
    lines = [_row(case.name, figures) for case, figures in found]
    mean = geometric_mean([ratio(figures) for _, figures in found])
    name = f"training step, geometric mean over {len(found)} models"
    larger = [_row(case.name, measured(case, MID_SIZE_ROUNDS)[0]) for case in MID_SIZE]
    return [*lines, Row(name, "", "", mean, "≤ 1.0", mean <= 1.0), *larger]


def _row(name: str, figures: Figures) -> Row:
    others = ", ".join(
        f"{contender} {statistics.median(times) * 1e3:.2f} ms"
        for contender, times in figures.items()
        if contender != OURS
    )
    value = ratio(figures)
    ours = f"{statistics.median(figures[OURS]) * 1e3:.2f} ms"
    return Row(f"training step, {name}", ours, others, value, f"≤ {WORST}", value <= WORST)


def ratio(figures: Figures) -> float:
    """Median over the rounds of our time over the best other time of that round; less is better."""
    others = [times for name, times in figures.items() if name != OURS]
    return statistics.median(mine / min(best) for mine, *best in zip(figures[OURS], *others, strict=True))


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def measured(case: Case, rounds: int) -> tuple[Figures, Figures]:
    """Seconds of a step in each round, by contender, of the wall clock and of all CPUs together.

    A contender that cannot run the model is left out.
    """
    _share_the_cpus()
    workload = case.load()
    built = {name: _build(build, workload) for name, build in CONTENDERS.items()}
    runs = {name: run for name, run in built.items() if run is not None}
    cpu: Figures = {name: [] for name in runs}
    wall = interleave({name: timed(run, cpu[name]) for name, run in runs.items()}, rounds)
    return wall, cpu


def _build(build: Callable[[Workload], Run], workload: Workload) -> Run | None:
    """A contender that has made its first steps; None where TensorFlow's XLA lacks an op of the model."""
    import tensorflow as tf

    run = build(workload)
    try:
        run(CHUNK)
    except tf.errors.InvalidArgumentError:
        return None
    return run


def timed(run: Run, cpu: list[float]) -> Callable[[], float]:
    """Measures the wall clock, and adds the time of the CPUs to a list."""
    started = time.perf_counter()
    run(CHUNK)
    step_s = (time.perf_counter() - started) / CHUNK
    steps = CHUNK * max(1, round(SECONDS / step_s / CHUNK))

    def measure() -> float:
        used, started = time.process_time(), time.perf_counter()
        run(steps)
        wall_s = time.perf_counter() - started
        cpu.append((time.process_time() - used) / steps)
        return wall_s / steps

    return measure


def _share_the_cpus() -> None:
    """Limit TensorFlow to the threads of XLA; to be called before either computes."""
    import tensorflow as tf

    from cs_system.engine.machine import limit_threads

    threads = limit_threads(None)
    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)


def engine(workload: Workload) -> Run:
    """The compiled program as the CS system runs it."""
    import tensorflow as tf

    from cgc.cirh.interface import step_interface
    from cgc.importers.tensorflow import import_step
    from cgc.lowering.interpret import export_step
    from cgc.passes import DEFAULT_PIPELINE
    from cgc.passes.pipeline import run_pipeline
    from cs_system.engine.pipelined import PipelinedEngine

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(1)
        inputs = [v1.placeholder(array.dtype, array.shape) for array in workload.batches[0]]
        spec = workload.train_spec(inputs)
        imported = import_step(
            graph,
            inputs=inputs,
            outputs={"loss": spec.loss},
            updates=[spec.train_op],
            mode="train",
            seed=1,
            global_step=v1.train.get_global_step(),
        )
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            initial = session.run({variable.op.name: variable for variable in v1.global_variables()})
    run_pipeline(imported.module, DEFAULT_PIPELINE)
    interface = step_interface(imported.module)
    program = PipelinedEngine(export_step(imported.module, interface), interface, CHUNK)
    program.put_state({spec.name: initial[imported.variables[spec.name]] for spec in interface.state})
    chunk = tuple(aligned(np.stack(arrays)) for arrays in zip(*workload.batches, strict=True))

    return stepping(program, chunk)


def session(workload: Workload) -> Run:
    """A session of tf.compat.v1."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        inputs = [v1.placeholder(array.dtype, array.shape) for array in workload.batches[0]]
        spec = workload.train_spec(inputs)
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        step = session.make_callable([spec.loss, spec.train_op], feed_list=inputs)

    def run(steps: int) -> None:
        for number in range(steps):
            step(*workload.batches[number % CHUNK])

    return run


def function(workload: Workload, jit_compile: bool = False) -> Run:
    """A tf.function around the step."""
    import tensorflow as tf

    v1 = tf.compat.v1

    def build(*tensors: Any) -> Any:
        spec = workload.train_spec(tensors)
        with tf.control_dependencies([spec.train_op]):
            return tf.identity(spec.loss)

    signature = [tf.TensorSpec(array.shape, array.dtype) for array in workload.batches[0]]
    with tf.device("CPU:0"):
        step = tf.function(v1.wrap_function(build, signature), jit_compile=jit_compile, autograph=False)
        batches = [tuple(tf.constant(array) for array in batch) for batch in workload.batches]

    def run(steps: int) -> None:
        loss = tf.constant(0.0)
        for number in range(steps):
            loss = step(*batches[number % CHUNK])
        loss.numpy()

    return run


CONTENDERS: dict[str, Callable[[Workload], Run]] = {
    OURS: engine,
    "session": session,
    "tf.function": function,
    "tf.function jit": lambda workload: function(workload, jit_compile=True),
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = (*CASES, *MID_SIZE)
    names = [case.name for case in known]
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"the tiny ones without; of {', '.join(names)}"
    )
    parser.add_argument("--mid-size", action="store_true", help="the larger ones, where no MODEL is given")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if unknown := set(options.models) - set(names):
        parser.error(f"unknown model {', '.join(sorted(unknown))}, expected one of {', '.join(names)}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    chosen = [case for case in known if case.name in options.models]
    cases = chosen or (MID_SIZE if options.mid_size else CASES)
    print(f"{machine()}; medians of {options.rounds} rounds, ms a step")
    heads = [*CONTENDERS, "ours / best", "our CPU ms", "CPU / best"]
    print(f"{'model':<20}" + "".join(f"{head:>16}" for head in heads))
    ratios = []
    for case in cases:
        wall, cpu = measured(case, options.rounds)
        medians = [
            f"{statistics.median(wall[name]) * 1e3:>16.3f}" if name in wall else f"{'-':>16}"
            for name in CONTENDERS
        ]
        ratios.append(ratio(wall))
        ours = f"{statistics.median(cpu[OURS]) * 1e3:>16.3f}{ratio(cpu):>16.2f}"
        print(f"{case.name:<20}{''.join(medians)}{ratios[-1]:>16.2f}{ours}", flush=True)
    print(f"{'geometric mean':<84}{geometric_mean(ratios):>16.2f}")


if __name__ == "__main__":
    main()
