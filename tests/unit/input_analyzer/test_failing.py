"""Errors of a tf.data pipeline name the user's line of the stage that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from input_analyzer.measure.session import is_for_want_of_memory
from input_analyzer.measure.traces import shows_users_line, users_traceback
from input_analyzer.tf.failing import place_of
from input_rules.handover import InputProgram, Shard

HERE = Path(__file__)
NOWHERE = "/no-such-folder/part.tfrecord"


def small(number: Any) -> Any:
    tf.debugging.assert_less(number, tf.constant(40, tf.int64), message="too large")
    return number


def refused() -> Any:
    numbers = tf.data.Dataset.range(1000).map(lambda number: number + 1)
    numbers = numbers.map(small)  # this one fails
    return numbers.shuffle(8, seed=1).repeat().map(lambda number: 2 * number).batch(5).prefetch(2)


def missing() -> Any:
    files = tf.data.Dataset.from_tensor_slices([NOWHERE]).shuffle(3)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2)  # this one fails
    return records.map(tf.strings.length).repeat().batch(5)


def read(make: Callable[[], Any], in_graph: bool) -> None:
    if not in_graph:
        list(make().take(100))
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(make()).get_next()
        for _ in range(100):
            session.run(batch)


def reading_of(make: Callable[[], Any], in_graph: bool) -> BaseException:
    """What reading it raises."""
    with pytest.raises(tf.errors.OpError) as raised:
        read(make, in_graph)
    return raised.value


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("make", "op", "said"),
    [
        (refused, "map", "assertion failed: [too large]"),
        (missing, "interleave", f"{NOWHERE}; No such file or"),
    ],
)
def test_the_line_of_the_stage_that_failed_is_shown(
    make: Callable[[], Any], op: str, said: str, in_graph: bool
) -> None:
    error = reading_of(make, in_graph)
    program = InputProgram(
        "tensorflow", make, lambda shard: make(), lambda shard: iter(()), eager=not in_graph
    )
    text = HERE.read_text().splitlines()
    number = next(n for n, line in enumerate(text, 1) if "# this one fails" in line and f".{op}(" in line)
    first, line = place_of(program, Shard(1, 0), error, lambda doing: None).splitlines()
    assert first.startswith(f"It failed in {op}() at ")
    assert first.endswith(f"{HERE.name}:{number}:")
    assert line.strip() == text[number - 1].strip()
    shown = users_traceback(error)
    assert said in shown
    assert not any(noise in shown for noise in ("IteratorGetNext", "{{", "[["))


def test_what_does_not_fail_again_has_no_place() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(10).batch(5)

    program = InputProgram("tensorflow", make, lambda shard: make(), lambda shard: iter(()))
    error = tf.errors.InvalidArgumentError(None, None, "once")
    assert place_of(program, Shard(1, 0), error, lambda doing: None) == ""
    assert place_of(program, Shard(1, 0), ValueError("of Python"), lambda doing: None) == ""


def test_a_full_disk_is_no_want_of_memory() -> None:
    for text, memory in (
        ("OOM when allocating tensor", True),
        ("/tmp/cache; No space left on device", False),
    ):
        assert is_for_want_of_memory(tf.errors.ResourceExhaustedError(None, None, text)) == memory
    assert is_for_want_of_memory(MemoryError())
    assert not is_for_want_of_memory(ValueError())


def test_an_error_of_a_python_function_shows_its_line_already(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text("def broken(value):\n    raise ValueError('bad record')\n")
    names: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), names)
    numbers = tf.data.Dataset.range(3)
    error = reading_of(
        lambda: numbers.map(lambda n: tf.numpy_function(names["broken"], [n], tf.int64)), in_graph=False
    )
    assert shows_users_line(error)
    assert not shows_users_line(tf.errors.NotFoundError(None, None, "no line"))
