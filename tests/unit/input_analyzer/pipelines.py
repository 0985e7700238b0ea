"""tf.data pipelines of known cost: what each stage takes for a sample, and which one bounds.

Every function can be given to cs_input_analyzer as FILE.py:FUNCTION. `burn` takes CPU time by the clock of
its own thread and holds Python's lock, as most Python does; `nap` waits; `compute` is made of TensorFlow's
own operations, which many threads can do at once. None takes longer where other programs compute.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
_VALUES = 12_000
"""The number of elements whose sorting takes about a millisecond of one thread; it depends on the machine."""


def burn(us: int) -> Callable[[Any], Any]:
    """Return a map function that takes this CPU time, in Python."""

    def spin(value: Any) -> Any:
        end = time.thread_time_ns() + us * 1000
        while time.thread_time_ns() < end:
            pass
        return value

    return _called(spin)


def nap(us: int) -> Callable[[Any], Any]:
    """Return a map function that waits for this time."""

    def sleep(value: Any) -> Any:
        time.sleep(us / 1e6)
        return value

    return _called(sleep)


def _called(action: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: tf.ensure_shape(tf.numpy_function(action, [x], x.dtype), x.shape)


def compute(steps: int) -> Callable[[Any], Any]:
    """Return a map function that computes for about this time, with TensorFlow's operations."""
    unsorted = np.random.default_rng(0).random([steps, _VALUES], np.float32)

    def function(x: Any) -> Any:
        changed = tf.cast(x, tf.float32)
        for values in unsorted:  # in sequence, and not the same twice
            changed = tf.math.top_k(tf.constant(values) + changed, _VALUES).values[0]
        return x + tf.cast(changed * 0, x.dtype)

    return function


def numbers(count: int = 1000) -> Any:
    """0, 1, 2, ... without end."""
    return tf.data.Dataset.range(count).repeat()


def files(count: int, records: int, size: int = 100) -> list[str]:
    """Return paths of files with this many records each; written once."""
    folder = Path(os.environ.get("PIPELINES_DATA", tempfile.gettempdir()))
    paths = [folder / f"pipelines-{records}-{size}-{number}.tfrecord" for number in range(count)]
    for path in paths:
        if not path.exists():
            temporary = path.with_suffix(f".{os.getpid()}")
            with tf.io.TFRecordWriter(str(temporary)) as writer:
                for record in range(records):
                    # NumPy's strings, which Python functions get, lose zeros at their end.
                    writer.write(record.to_bytes(8, "little") + b"\1" * (size - 8))
            temporary.replace(path)
    return [str(path) for path in paths]


def sequential_burn() -> Any:
    """One thread computes, nothing else does."""
    return numbers().map(burn(3000)).repeat().batch(8, drop_remainder=True)


def parallel_compute() -> Any:
    """A pipeline with one thread per CPU."""
    return numbers().map(compute(4), num_parallel_calls=AUTOTUNE).batch(8, drop_remainder=True)


def made_parallel() -> Any:
    """Written without parallel calls; TensorFlow makes them parallel, as they keep no state."""
    return numbers().map(compute(3)).shuffle(16, seed=1).repeat().batch(8, drop_remainder=True)


def sleeping() -> Any:
    """One thread waits."""
    return numbers().map(nap(4000)).repeat().batch(4, drop_remainder=True)


def parallel_sleep() -> Any:
    """Eight calls wait at once, on whatever CPUs; one thread computes."""
    dataset = numbers().map(nap(16_000), num_parallel_calls=8)
    return dataset.shuffle(16, seed=1).map(burn(500)).repeat().batch(8, drop_remainder=True)


def interleaved() -> Any:
    """Four files at once, each as slow as if it were far away; what is read is decoded on all CPUs."""
    dataset = tf.data.Dataset.from_tensor_slices(files(4, 200)).interleave(
        lambda path: tf.data.TFRecordDataset(path).map(nap(6000)), cycle_length=4, num_parallel_calls=AUTOTUNE
    )
    decoded = dataset.map(lambda record: tf.cast(tf.io.decode_raw(record, tf.uint8), tf.int64)[:1])
    return decoded.map(compute(1), num_parallel_calls=AUTOTUNE).repeat().batch(8, drop_remainder=True)


def cached() -> Any:
    """The expensive work is done once."""
    dataset = tf.data.Dataset.range(64).map(burn(5000)).cache()
    return dataset.repeat().map(burn(1500)).repeat().batch(8, drop_remainder=True)


def zipped() -> Any:
    """Two inputs that one thread makes in turn."""
    both = tf.data.Dataset.zip((numbers().map(burn(1500)), numbers().map(nap(2500))))
    return both.map(lambda a, b: a + b).repeat().batch(4, drop_remainder=True)


def large_records() -> Any:
    """Records of 1 MiB: bound by how fast memory is copied."""
    record = tf.zeros([256, 1024], tf.float32)
    dataset = numbers().map(lambda x: record + tf.cast(x, tf.float32))
    return dataset.shuffle(64, seed=1).batch(16, drop_remainder=True)


def eager_python() -> Any:
    """A py_function, which runs eagerly in Python."""

    def convert(x: Any) -> Any:
        end = time.thread_time_ns() + 2_000_000
        while time.thread_time_ns() < end:
            pass
        return x + 1

    def function(x: Any) -> Any:
        return tf.ensure_shape(tf.py_function(convert, [x], tf.int64), [])

    return numbers().map(function, num_parallel_calls=AUTOTUNE).batch(8, drop_remainder=True)


def sequential_then_parallel() -> Any:
    """The larger self time is that of the stage that two CPUs do side by side."""
    dataset = numbers().map(burn(3000)).map(compute(5), num_parallel_calls=AUTOTUNE)
    return dataset.batch(8, drop_remainder=True)


def two_stages() -> Any:
    """Two stages in one thread each, with a buffer between them; Python's lock is not needed by one."""
    dataset = numbers().map(burn(2000)).prefetch(8).map(nap(2500))
    return dataset.repeat().batch(4, drop_remainder=True).prefetch(2)


def one_thread_of_three() -> Any:
    """Three stages that take turns in one thread, and a more expensive one that has its own threads."""
    dataset = numbers().map(nap(2000)).map(burn(1500)).map(nap(1800))
    return dataset.map(compute(4), num_parallel_calls=AUTOTUNE).batch(4, drop_remainder=True)


def slow_opens() -> Any:
    """Many small files, which take longer to open than to read, in sequence."""

    def opened(path: Any) -> Any:
        def wait(name: Any) -> Any:
            time.sleep(0.02)
            return name

        return tf.ensure_shape(tf.numpy_function(wait, [path], tf.string), [])

    paths = tf.data.Dataset.from_tensor_slices(files(8, 10)).map(opened)
    records = paths.flat_map(tf.data.TFRecordDataset)
    decoded = records.map(lambda record: tf.io.decode_raw(record, tf.uint8)[:8])
    return decoded.repeat().batch(5, drop_remainder=True)


@dataclass(frozen=True)
class Case:
    """A pipeline and its known properties.

    Attributes:
        make: The pipeline.
        costs: By stage (microseconds of Python, microseconds of waiting, steps of `compute`) a sample.
        bottleneck: By the CPUs of a task.
    """

    make: Callable[[], Any]
    costs: Mapping[str, tuple[int, int, int]]
    bottleneck: Mapping[int, str]

    @property
    def name(self) -> str:
        """That of the function."""
        return self.make.__name__


CASES = (
    Case(sequential_burn, {"map": (3000, 0, 0)}, {1: "map", 2: "map"}),
    Case(parallel_compute, {"map": (0, 0, 4)}, {1: "map", 2: "map"}),
    Case(made_parallel, {"map": (0, 0, 3)}, {1: "map", 2: "map"}),
    Case(sleeping, {"map": (0, 4000, 0)}, {1: "map", 2: "map"}),
    Case(parallel_sleep, {"map": (0, 16_000, 0), "map_2": (500, 0, 0)}, {1: "map", 2: "map"}),
    Case(interleaved, {"interleave": (0, 6000, 0), "map_2": (0, 0, 1)}, {1: "interleave", 2: "interleave"}),
    Case(cached, {"map": (5000, 0, 0), "map_2": (1500, 0, 0)}, {1: "map_2", 2: "map_2"}),
    Case(zipped, {"map": (1500, 0, 0), "map_2": (0, 2500, 0)}, {1: "map_2", 2: "map_2"}),
    Case(large_records, {}, {}),
    Case(eager_python, {"map": (2000, 0, 0)}, {1: "map", 2: "map"}),
    Case(sequential_then_parallel, {"map": (3000, 0, 0), "map_2": (0, 0, 5)}, {1: "map_2", 2: "map"}),
    Case(two_stages, {"map": (2000, 0, 0), "map_2": (0, 2500, 0)}, {1: "map_2", 2: "map_2"}),
    Case(
        one_thread_of_three,
        {"map": (0, 2000, 0), "map_2": (1500, 0, 0), "map_3": (0, 1800, 0), "map_4": (0, 0, 4)},
        {1: "map_4", 2: "map"},
    ),
    Case(slow_opens, {"map": (0, 2000, 0)}, {1: "map", 2: "map"}),
)
"""All of them. Costs of `large_records` are those of the machine's memory."""
