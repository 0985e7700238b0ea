"""Reports of errors that an input function raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from input_analyzer.child import is_for_want_of_memory
from input_analyzer.errors import lost_a_worker, users_traceback

NOWHERE = "/no-such-folder/part.tfrecord"


def small(number: Any) -> Any:
    tf.debugging.assert_less(number, tf.constant(40, tf.int64), message="too large")
    return number


def refused() -> Any:
    numbers = tf.data.Dataset.range(1000).map(lambda number: number + 1).map(small)
    return numbers.shuffle(8, seed=1).repeat().map(lambda number: 2 * number).batch(5).prefetch(2)


def missing() -> Any:
    files = tf.data.Dataset.from_tensor_slices([NOWHERE]).shuffle(3)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
    return records.map(tf.strings.length).repeat().batch(5)


def undecoded() -> Any:
    return tf.data.Dataset.from_tensor_slices([b"no picture"]).map(tf.io.decode_png).batch(1)


def read(make: Callable[[], Any], in_graph: bool) -> None:
    if not in_graph:
        list(make().take(100))
        return
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(make()).get_next()
        for _ in range(100):
            session.run(batch)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (refused, "assertion failed: [too large]"),
        (missing, f"{NOWHERE}; No such file or"),
        (undecoded, "WebP required. (operation DecodePng)"),
    ],
)
def test_an_error_in_a_graph_is_reported_without_the_operation_that_reads(
    make: Callable[[], Any], said: str, in_graph: bool
) -> None:
    with pytest.raises(tf.errors.OpError) as raised:
        read(make, in_graph)
    shown = users_traceback(raised.value)
    assert said in shown
    assert not any(noise in shown for noise in ("IteratorGetNext", "{{", "[["))


def test_a_full_disk_is_no_want_of_memory() -> None:
    for text, memory in (
        ("OOM when allocating tensor", True),
        ("/tmp/cache; No space left on device", False),
    ):
        assert is_for_want_of_memory(tf.errors.ResourceExhaustedError(None, None, text)) == memory
    assert is_for_want_of_memory(MemoryError())
    assert not is_for_want_of_memory(ValueError())


@pytest.mark.parametrize(
    ("files", "lost"),
    [
        (("/x/torch/utils/data/dataloader.py", "/x/python3/multiprocessing/connection.py"), True),
        (("/x/torch/utils/data/dataloader.py", "/home/me/data.py"), False),
        (("/home/me/data.py", "/x/python3/multiprocessing/connection.py"), False),
    ],
)
def test_a_queue_of_torch_that_fails_has_lost_a_worker(files: tuple[str, str], lost: bool) -> None:
    names: dict[str, Any] = {}
    exec(compile("def inner():\n    raise FileNotFoundError(2, 'No such file')\n", files[1], "exec"), names)
    exec(compile("def outer():\n    inner()\n", files[0], "exec"), names)
    with pytest.raises(FileNotFoundError) as raised:
        names["outer"]()
    assert lost_a_worker(raised.value) is lost
