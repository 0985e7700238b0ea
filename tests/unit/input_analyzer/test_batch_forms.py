"""Functions of single records that move after the batch: the change of the source computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
import tensorflow as tf

from input_analyzer.batch_forms import MAP_BEFORE_BATCH
from input_analyzer.changed_source import CannotChangeError, changed_source
from input_analyzer.gains import choose_form, drop_untried, plan_forms
from input_analyzer.source_changes import add_diffs, plan_changes
from input_analyzer.tf import compare
from input_rules.findings import Finding
from input_rules.input_export import InputProgram
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.pipeline import trace

HEAD = """
import functools
import numpy as np
import tensorflow as tf

def records():
    for number in range(24):
        pixels = bytes((number * 7 + place) % 256 for place in range(12))
        feature = {
            "x": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pixels])),
            "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10])),
            "v": tf.train.Feature(float_list=tf.train.FloatList(value=[number + 0.5, number, 1, 2])),
        }
        yield tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

SPEC = {
    "x": tf.io.FixedLenFeature([], tf.string),
    "y": tf.io.FixedLenFeature([], tf.int64),
    "v": tf.io.FixedLenFeature([4], tf.float32),
}
RECORDS = tf.constant(list(records()))

def source():
    return tf.data.Dataset.from_tensor_slices(RECORDS.numpy())
"""


@pytest.fixture
def load(load_source: Callable[[str], ModuleType]) -> Callable[[str], ModuleType]:
    """Provide a function that imports a program after the common head."""
    return lambda text: load_source(HEAD + dedent(text))


def input_of(module: Any) -> InputProgram:
    return InputProgram("tensorflow", module.make, lambda shard: module.make(), lambda shard: iter(()))


def findings_of(module: Any) -> list[Finding]:
    found = find(trace(module.make).pipeline, Context(tries_changes=True))
    return [finding for finding in found if finding.id == MAP_BEFORE_BATCH]


def propose(module: Any) -> Finding | None:
    """Return the finding with the change that was tried, as an analysis reports it; None if there is none."""
    findings = findings_of(module)
    forms = plan_forms(findings)
    if not forms:
        kept = drop_untried(findings)
    else:
        kept = choose_form(findings, compare.choose_form(input_of(module), forms))
    return next(iter(add_diffs(kept)), None)


def changed_lines(finding: Finding | None) -> list[str]:
    assert finding is not None
    assert finding.diff is not None, plan_changes([finding]).unchanged
    lines = finding.diff.splitlines()
    return [line[0] + " ".join(line[1:].split()) for line in lines[2:] if line[0] in "+-"]


CASES = {
    "chain": (
        """
        def parse(record):
            features = tf.io.parse_single_example(record, SPEC)
            return tf.cast(features["v"], tf.float32) / 2.0, tf.one_hot(features["y"], 10)

        def make():
            return (
                source()
                # one by one
                .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
                .shuffle(8)
                .repeat()
                .batch(6, drop_remainder=True)
                .prefetch(2)
            )
        """,
        [
            "-features = tf.io.parse_single_example(record, SPEC)",
            "+features = tf.io.parse_example(record, SPEC)",
            "-# one by one",
            "-.map(parse, num_parallel_calls=tf.data.AUTOTUNE)",
            "+# one by one",
            "+.map(parse, num_parallel_calls=tf.data.AUTOTUNE)",
        ],
    ),
    "statements": (
        """
        def decode(record):
            image = tf.io.decode_raw(record, tf.uint8)
            image.set_shape([12])
            return tf.reshape(image, (2, 6, 1))

        def make():
            dataset = tf.data.Dataset.from_tensor_slices([bytes(range(n, n + 12)) for n in range(20)])
            dataset = dataset.map(decode)
            dataset = dataset.repeat()
            dataset = dataset.map(lambda image: (tf.cast(image, tf.float32) - 128.0) / 255.0)
            dataset = dataset.batch(4, drop_remainder=True)
            return dataset
        """,
        [
            "-image.set_shape([12])",
            "-return tf.reshape(image, (2, 6, 1))",
            "+image.set_shape([None, 12])",
            "+return tf.reshape(image, (-1, 2, 6, 1))",
            "-dataset = dataset.map(decode)",
            "-dataset = dataset.map(lambda image: (tf.cast(image, tf.float32) - 128.0) / 255.0)",
            "-dataset = dataset.batch(4, drop_remainder=True)",
            "+dataset = dataset.batch(4, drop_remainder=True).map(decode)"
            ".map(lambda image: (tf.cast(image, tf.float32) - 128.0) / 255.0)",
        ],
    ),
    "axes": (
        """
        class Reader:
            def parse(self, record):
                return self.normalize(tf.io.parse_single_example(record, SPEC)["v"])

            def normalize(self, v):
                v = v / tf.reduce_sum(v, axis=-1, keepdims=True)
                return tf.transpose(tf.stack([v, tf.expand_dims(v, 0)[0]]), [1, 0])

            def dataset(self):
                return source().map(self.parse).batch(6, drop_remainder=True)

        def make():
            return Reader().dataset()
        """,
        [
            # `[0]` would select a record of the batch, so that the first form computes something else.
            "-return source().map(self.parse).batch(6, drop_remainder=True)",
            "+return source().batch(6, drop_remainder=True).map(lambda batch: tf.vectorized_map("
            "self.parse, batch, fallback_to_while_loop=False))",
        ],
    ),
    "axes of batches": (
        """
        def parse(record):
            v = tf.io.parse_single_example(record, SPEC)["v"]
            return tf.concat([tf.stack([v, v]), tf.transpose(tf.stack([v, v], axis=1), [1, 0])], axis=0)

        def make():
            return source().map(parse).batch(6, drop_remainder=True)
        """,
        [
            '-v = tf.io.parse_single_example(record, SPEC)["v"]',
            "-return tf.concat([tf.stack([v, v]), tf.transpose(tf.stack([v, v], axis=1), [1, 0])], axis=0)",
            '+v = tf.io.parse_example(record, SPEC)["v"]',
            "+return tf.concat([tf.stack([v, v], axis=1), tf.transpose(tf.stack([v, v], axis=2), "
            "[0, 2, 1])], axis=1)",
            "-return source().map(parse).batch(6, drop_remainder=True)",
            "+return source().batch(6, drop_remainder=True).map(parse)",
        ],
    ),
    "sums of records": (
        """
        def parse(record, scale):
            v = tf.io.parse_single_example(record, SPEC)["v"]
            return scale * v / tf.reduce_sum(v), tf.gather([1.0, 2.0, 4.0, 8.0, 16.0], 3)

        def make():
            return source().map(functools.partial(parse, scale=2.0)).batch(6, drop_remainder=True)
        """,
        [
            "-return source().map(functools.partial(parse, scale=2.0)).batch(6, drop_remainder=True)",
            "+return source().batch(6, drop_remainder=True).map(lambda *batch: tf.vectorized_map(lambda "
            "record: functools.partial(parse, scale=2.0)(*record), batch, fallback_to_while_loop=False))",
        ],
    ),
    "as many columns as records": (
        """
        def make():
            rows = np.arange(80, dtype=np.float32).reshape(20, 4)
            dataset = tf.data.Dataset.from_tensor_slices((rows, np.ones(20, np.float32)))
            # Weights of 1 would hide that each record is multiplied by the weights of all of them.
            return dataset.map(lambda x, weight: x * weight).batch(4, drop_remainder=True)
        """,
        [
            "-return dataset.map(lambda x, weight: x * weight).batch(4, drop_remainder=True)",
            "+return dataset.batch(4, drop_remainder=True).map(lambda *batch: tf.vectorized_map("
            "lambda record: (lambda x, weight: x * weight)(*record), batch, fallback_to_while_loop=False))",
        ],
    ),
    "two components": (
        """
        def make():
            dataset = tf.data.Dataset.from_tensor_slices((np.ones([9, 3], np.float32), np.arange(9)))
            return dataset.map(lambda x, y: (x * tf.cast(y, tf.float32), y)).batch(3, drop_remainder=True)
        """,
        [
            "-return dataset.map(lambda x, y: (x * tf.cast(y, tf.float32), y)).batch(3, drop_remainder=True)",
            "+return dataset.batch(3, drop_remainder=True).map(lambda *batch: tf.vectorized_map("
            "lambda record: (lambda x, y: (x * tf.cast(y, tf.float32), y))(*record), batch, "
            "fallback_to_while_loop=False))",
        ],
    ),
    "a function for single records elsewhere, too": (
        """
        def parse(record):
            return tf.io.parse_single_example(record, SPEC)["v"]

        def one():
            return parse(RECORDS[0])

        def make():
            return source().map(parse).batch(6, drop_remainder=True)
        """,
        [
            "-return source().map(parse).batch(6, drop_remainder=True)",
            "+return source().batch(6, drop_remainder=True).map(lambda batch: tf.vectorized_map("
            "parse, batch, fallback_to_while_loop=False))",
        ],
    ),
    "map and batch in one call": (
        """
        def parse(record, spec):
            example = tf.io.parse_single_example(record, spec)
            for name in list(example):
                if example[name].dtype == tf.int64:
                    example[name] = tf.cast(example[name], tf.int32)
            return example["v"], example["y"]

        def make():
            return source().apply(
                tf.data.experimental.map_and_batch(
                    lambda record: parse(record, SPEC),
                    batch_size=6,
                    num_parallel_batches=2,
                    drop_remainder=True))
        """,
        [
            "-example = tf.io.parse_single_example(record, spec)",
            "+example = tf.io.parse_example(record, spec)",
            "-return source().apply(",
            "-tf.data.experimental.map_and_batch(",
            "-lambda record: parse(record, SPEC),",
            "-batch_size=6,",
            "-num_parallel_batches=2,",
            "-drop_remainder=True))",
            "+return source().batch(6, drop_remainder=True).map(lambda record: parse(record, SPEC), "
            "num_parallel_calls=tf.data.AUTOTUNE)",
        ],
    ),
    "Python": (
        """
        def scale(x):
            x = x.astype(np.float32) / np.float32(255)
            return np.sqrt(x)

        def call(x):
            y = tf.numpy_function(scale, [x], tf.float32)
            y.set_shape([4])
            return y

        def make():
            numbers = np.arange(64, dtype=np.int32).reshape(16, 4)
            return tf.data.Dataset.from_tensor_slices(numbers).map(call).batch(4, drop_remainder=True)
        """,
        [
            "-y.set_shape([4])",
            "+y.set_shape([None, 4])",
            "-return tf.data.Dataset.from_tensor_slices(numbers).map(call).batch(4, drop_remainder=True)",
            "+return tf.data.Dataset.from_tensor_slices(numbers).batch(4, drop_remainder=True).map(call)",
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_a_diff_that_computes_the_same(case: str, load: Callable[[str], ModuleType]) -> None:
    text, expected = CASES[case]
    assert changed_lines(propose(load(text))) == expected


SILENT = {
    "Python with a branch": """
        def clip(x):
            return x if x[0] < 9 else -x

        def make():
            numbers = np.arange(64, dtype=np.int32).reshape(16, 4)
            dataset = tf.data.Dataset.from_tensor_slices(numbers)
            dataset = dataset.map(lambda x: tf.ensure_shape(tf.numpy_function(clip, [x], tf.int32), [4]))
            return dataset.batch(4, drop_remainder=True)
        """,
    "Python that counts its calls": """
        CALLS = []

        def count(x):
            CALLS.append(x)
            return x + np.int32(len(CALLS))

        def make():
            numbers = np.arange(64, dtype=np.int32).reshape(16, 4)
            dataset = tf.data.Dataset.from_tensor_slices(numbers)
            dataset = dataset.map(lambda x: tf.ensure_shape(tf.numpy_function(count, [x], tf.int32), [4]))
            return dataset.batch(4, drop_remainder=True)
        """,
    "neither form computes the same": """
        def decode(record):
            image = tf.reshape(tf.io.decode_raw(record, tf.uint8), [12])
            return tf.cast(image, tf.int32) * tf.reduce_sum(tf.cast(image, tf.int32))

        def make():
            dataset = tf.data.Dataset.from_tensor_slices([bytes(range(n, n + 12)) for n in range(20)])
            return dataset.map(decode).batch(4, drop_remainder=True)
        """,
}


@pytest.mark.parametrize("case", SILENT)
def test_a_change_that_may_compute_something_else_is_not_proposed(
    case: str, load: Callable[[str], ModuleType]
) -> None:
    module = load(SILENT[case])
    assert findings_of(module), "the graph allows it"
    assert propose(module) is None


BY_HAND = {
    "map() and batch() are in different functions": """
        def parsed():
            return source().map(lambda record: tf.io.parse_single_example(record, SPEC)["v"])

        def make():
            return parsed().batch(6, drop_remainder=True)
        """,
    "map() and batch() are in different blocks": """
        def make(parses=True):
            dataset = source()
            if parses:
                dataset = dataset.map(lambda record: tf.io.parse_single_example(record, SPEC)["v"])
            return dataset.batch(6, drop_remainder=True)
        """,
    "it is not certain which calls of map() are meant": """
        def make():
            other = source().map(lambda x: x); dataset = source().map(lambda x: tf.strings.length(x))
            return dataset.batch(6, drop_remainder=True)
        """,
}


@pytest.mark.parametrize("reason", BY_HAND)
def test_what_is_left_to_the_author_has_a_reason(reason: str, load: Callable[[str], ModuleType]) -> None:
    (finding,) = findings_of(load(BY_HAND[reason]))
    assert plan_forms([finding]) == {}
    assert [text for _, text in plan_changes([finding]).unchanged] == [reason]


def test_it_fits_with_changes_of_the_same_calls(load: Callable[[str], ModuleType]) -> None:
    module = load(
        CASES["chain"][0].replace(", num_parallel_calls=tf.data.AUTOTUNE", "").replace(".prefetch(2)", "")
    )
    found = find(trace(module.make).pipeline, Context())
    wanted = ("map-before-batch", "parallel-calls-missing", "prefetch-missing")
    changes = plan_changes([finding for finding in found if finding.id in wanted])
    (file,) = changes.files
    text = " ".join(file.after.split())
    assert (
        ".shuffle(8) .repeat() .batch(6, drop_remainder=True) # one by one "
        ".map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)"
    ) in text


def test_functions_run_a_changed_source_and_then_their_own(load: Callable[[str], ModuleType]) -> None:
    module = load(
        """
        def outer(base):
            def inner(x):
                return base + x
            return inner

        KEPT = outer(1)

        def make():
            return KEPT(10)
        """
    )
    path = module.__file__
    assert path is not None
    text = Path(path).read_text()
    with changed_source({path: text.replace("base + x", "base - x").replace("KEPT(10)", "KEPT(20)")}):
        assert module.make() == -19, "a function that was made before is changed, too"
    assert module.make() == 11
    with (
        pytest.raises(CannotChangeError, match="other variables"),
        changed_source({path: text.replace("base + x", "x + 1")}),
    ):
        pass
    with pytest.raises(CannotChangeError, match="no function of"), changed_source({"/nothing.py": ""}):
        pass
    assert module.make() == 11


def test_the_gain_of_the_changed_source_is_measured(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TURN_S", "WARM_UP_S"):
        monkeypatch.setattr(f"input_analyzer.gains.{name}", 0.05)
    text = CASES["chain"][0].replace("batch(6", "repeat().batch(256")
    module = load(text)
    forms = plan_forms(findings_of(module))
    ratio = compare.compare(input_of(module), {MAP_BEFORE_BATCH: None}, 2.0, lambda: None, forms["batch_ops"])
    assert ratio is not None
    assert ratio[0] > 1.2, "256 calls become one"
    assert tf.executing_eagerly()
