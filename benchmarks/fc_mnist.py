"""FC-MNIST on this machine's CPU: the engine against plain TensorFlow.

All contenders train the network of models/fc_mnist (784-500-300-10, dropout 0.2, Adam, batch 256) from the
same initial weights, with batches from memory.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_loop import aligned, stepping
from benchmarks.harness import Row, interleave, medians_text, ratio_to_best

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "fc_mnist" / "tf"
BATCH_SIZE = 256
CHUNK = 16
STEPS = 160
ROUNDS = 7
LEARNING_RATE = 1e-3

Steps = Callable[[int], None]


def engine_rows() -> list[Row]:
    """The engine by itself, with batches from memory."""
    batches = _batches()
    contenders = {
        "engine": _engine(batches),
        "session": _session(batches),
        "tf.function jit": _jit_function(batches),
    }
    for run in contenders.values():
        run(2 * CHUNK)
    figures = interleave({name: _rate(run, STEPS) for name, run in contenders.items()}, ROUNDS)
    ratio = ratio_to_best(figures, "engine")
    ours = f"{statistics.median(figures['engine']):,.0f} steps/s"
    return [
        Row(
            "FC-MNIST step, engine fed from memory",
            ours,
            medians_text(figures, "engine", "steps/s"),
            ratio,
            "≥ 1.0",
            ratio >= 1.0,
        )
    ]


def _rate(run: Steps, steps: int) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        run(steps)
        return steps / (time.perf_counter() - started)

    return measure


def _batches() -> tuple[np.ndarray, np.ndarray]:
    """A chunk of batches, 64-byte aligned as the rows of the system's ring are."""
    generator = np.random.default_rng(0)
    pixels = generator.random((CHUNK, BATCH_SIZE, 784), dtype=np.float32)
    labels = generator.integers(0, 10, (CHUNK, BATCH_SIZE)).astype(np.int32)
    return aligned(pixels), aligned(labels)


def _model_params() -> tuple[Any, dict[str, Any]]:
    sys.path.insert(0, str(MODEL))
    from model import model_fn

    return model_fn, {
        "model": {"hidden_sizes": [500, 300], "dropout": 0.2},
        "optimizer": {"learning_rate": LEARNING_RATE},
    }


def _engine(batches: tuple[np.ndarray, np.ndarray]) -> Steps:
    import tensorflow as tf

    from cgc.cirh.interface import step_interface
    from cgc.lowering.interpret import export_step
    from cgc.passes import DEFAULT_PIPELINE
    from cgc.passes.pipeline import run_pipeline
    from cs_system.engine.pipelined import PipelinedEngine
    from estimator import CSRunConfig, ModeKeys
    from estimator.cs.program import TensorFlowFrontEnd
    from estimator.input.dataset import InputSource

    def input_fn() -> Any:
        return tf.data.Dataset.from_tensors((batches[0][0], batches[1][0])).repeat()

    model_fn, params = _model_params()
    config = CSRunConfig(tf_random_seed=1)
    with tempfile.TemporaryDirectory() as model_dir:
        source = InputSource(input_fn, ModeKeys.TRAIN, params, config, {})
        front_end = TensorFlowFrontEnd(model_fn, source, params, config, Path(model_dir))
        module = front_end.program().module
        run_pipeline(module, DEFAULT_PIPELINE)
        interface = step_interface(module)
        engine = PipelinedEngine(export_step(module, interface), interface, CHUNK)
        engine.program()
        engine.put_state(front_end.initial_state())
        front_end.close()

    return stepping(engine, batches)


def _session(batches: tuple[np.ndarray, np.ndarray]) -> Steps:
    import tensorflow as tf

    v1 = tf.compat.v1
    model_fn, params = _model_params()
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        pixels = v1.placeholder(tf.float32, batches[0].shape[1:])
        labels = v1.placeholder(tf.int32, batches[1].shape[1:])
        v1.train.get_or_create_global_step()
        spec = model_fn(pixels, labels, "train", params)
        session = v1.Session()
        session.run(v1.global_variables_initializer())
        step = session.make_callable([spec.loss, spec.train_op], feed_list=[pixels, labels])

    def run(steps: int) -> None:
        for number in range(steps):
            step(batches[0][number % CHUNK], batches[1][number % CHUNK])

    return run


def _jit_function(batches: tuple[np.ndarray, np.ndarray]) -> Steps:
    """The same step as one XLA program of TensorFlow, with the update op that the session runs too."""
    import tensorflow as tf

    sizes = (784, 500, 300, 10)
    tf.random.set_seed(1)
    glorot = tf.keras.initializers.GlorotUniform(1)
    weights = [
        tf.Variable(value)
        for rows, columns in itertools.pairwise(sizes)
        for value in (glorot((rows, columns)), tf.zeros(columns))
    ]
    slots = [(w, tf.Variable(tf.zeros_like(w)), tf.Variable(tf.zeros_like(w))) for w in weights]
    beta1_power, beta2_power = tf.Variable(0.9), tf.Variable(0.999)

    def loss_of(pixels: Any, labels: Any) -> Any:
        hidden = pixels
        for layer in range(3):
            hidden = tf.nn.bias_add(tf.matmul(hidden, weights[2 * layer]), weights[2 * layer + 1])
            if layer < 2:
                hidden = tf.nn.dropout(tf.nn.relu(hidden), rate=0.2, seed=layer)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden))

    @tf.function(jit_compile=True)
    def step(pixels: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(pixels, labels)
        for (weight, m, v), gradient in zip(slots, tape.gradient(loss, weights), strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=weight.handle, m=m.handle, v=v.handle,
                beta1_power=beta1_power, beta2_power=beta2_power,
                lr=LEARNING_RATE, beta1=0.9, beta2=0.999, epsilon=1e-8, grad=gradient,
            )  # fmt: skip
        beta1_power.assign(beta1_power * 0.9)
        beta2_power.assign(beta2_power * 0.999)
        return loss

    constants = [(tf.constant(x), tf.constant(y)) for x, y in zip(*batches, strict=True)]

    def run(steps: int) -> None:
        for number in range(steps):
            loss = step(*constants[number % CHUNK])
        loss.numpy()

    return run


@contextmanager
def cs_system() -> Iterator[str]:
    """A CS system on this machine; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [
            "bin/cs_system", "serve", "--port", "0", "--data-port", "0", "--ready-file", str(ready),
        ]  # fmt: skip
        server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                if server.poll() is not None:
                    raise RuntimeError(f"the CS system ended with exit code {server.returncode}")
                time.sleep(0.05)
            yield json.loads(ready.read_text())["address"]
        finally:
            server.terminate()
            server.wait(timeout=30)
