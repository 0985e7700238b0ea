"""Diffs of the user's source: what they change, and what they do not."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from input_analyzer.source_diff import changes
from input_rules.findings import Finding

HEAD = "import tensorflow as tf\n"


def changed(
    body: str, identifier: str, op: str, line: int, recommended: str = "", value: int | None = None
) -> list[str]:
    """The lines that a diff adds to a source of two lines or more."""
    source = HEAD + textwrap.dedent(body)
    finding = Finding(identifier, "warning", op, f"data.py:{line}", "slow", recommended, None, value)
    text = changes([finding], lambda path: source).diff
    return [row[1:] for row in text.splitlines() if row.startswith("+") and not row.startswith("+++")]


@pytest.mark.parametrize(
    ("identifier", "op", "before", "after"),
    [
        ("drop-remainder-missing", "batch", "d = d.batch(8)", "d = d.batch(8, drop_remainder=True)"),
        (
            "drop-remainder-missing",
            "batch",
            "d = d.batch(8, drop_remainder=False).cache()",
            "d = d.batch(8, drop_remainder=True).cache()",
        ),
        (
            "parallel-calls-missing",
            "map",
            "d = d.map(lambda ä: g(ä)).batch(2)",
            "d = d.map(lambda ä: g(ä), num_parallel_calls=tf.data.AUTOTUNE).batch(2)",
        ),
        (
            "parallel-calls-fixed",
            "map",
            "d.map(f, num_parallel_calls=4)",
            "d.map(f, num_parallel_calls=tf.data.AUTOTUNE)",
        ),
        (
            "parallel-calls-missing",
            "map",
            "d = d.map((lambda x: g(x)))",
            "d = d.map((lambda x: g(x)), num_parallel_calls=tf.data.AUTOTUNE)",
        ),
        ("prefetch-missing", "batch", "return d.batch(8)", "return d.batch(8).prefetch(tf.data.AUTOTUNE)"),
        ("prefetch-empty", "prefetch", "d = d.prefetch(0)", "d = d.prefetch(tf.data.AUTOTUNE)"),
        ("order-not-deterministic", "map", "d.map(f, deterministic=False)", "d.map(f, deterministic=True)"),
    ],
)
def test_changes(identifier: str, op: str, before: str, after: str) -> None:
    assert changed(before, identifier, op, 2) == [after]


def test_a_number_that_is_recommended_is_written() -> None:
    read = 'd = tf.data.TFRecordDataset(["a", "b"])'
    assert changed(read, "parallel-reads-missing", "TFRecordDataset", 2, value=4) == [
        'd = tf.data.TFRecordDataset(["a", "b"], num_parallel_reads=4)'
    ]
    assert changed("d.interleave(f, cycle_length=2)", "cycle-length-fixed", "interleave", 2, value=4) == [
        "d.interleave(f, cycle_length=4)"
    ]
    loose = "d = d.with_options(options)"
    assert changed(loose, "order-not-deterministic", "with_options", 2) == [], "options are set elsewhere"


def test_recommended_sizes_are_taken() -> None:
    found = changed("d = d.shuffle(8, seed=n)", "shuffle-buffer-small", "shuffle", 2, "a buffer of 80", 80)
    assert found == ["d = d.shuffle(80, seed=n)"]


def test_calls_without_an_argument_for_it_are_not_given_one() -> None:
    missing = "drop-remainder-missing"
    made = "d = make_batched_features_dataset(files, 8, kinds, num_epochs=1)"
    kept = made.replace("=1)", "=1, drop_final_batch=True)")
    assert changed(made.replace("make", "x.make"), missing, "make_batched_features_dataset", 2) == [
        kept.replace("make", "x.make")
    ]
    assert changed("d = u.image_dataset_from_directory(p)", missing, "image_dataset_from_directory", 2) == []
    assert changed("d = d.flat_map(lambda w: w.batch(8))", missing, "flat_map", 2) == []


def test_calls_over_several_lines() -> None:
    body = """\
    d = (
        d.map(f)
        .map(
            g,
        )
    )
    """
    assert changed(body, "parallel-calls-missing", "map", 3) == [
        "    d.map(f, num_parallel_calls=tf.data.AUTOTUNE)"
    ]
    assert changed(body, "parallel-calls-missing", "map", 4) == [
        "        g, num_parallel_calls=tf.data.AUTOTUNE,"
    ]


def test_what_is_not_plain_is_left() -> None:
    assert changed("d = d.map(f).map(g)", "parallel-calls-missing", "map", 2) == []
    assert changed("d = d.map(f, **settings)", "parallel-calls-missing", "map", 2) == []
    assert changed("d = d.map(f)", "random-state", "map", 2) == []
    finding = Finding("parallel-calls-missing", "warning", "map", "data.py:1", "slow", "")
    assert changes([finding], lambda path: "import tensorflow\nd = d.map(f)\n").diff == ""
    assert changes([finding], lambda path: "d = d.map(\n").diff == ""
    number = replace(finding, id="parallel-reads-missing", value=4)
    written = changes([number], lambda path: "d = d.map(f)\n").diff
    assert "+d = d.map(f, num_parallel_reads=4)\n" in written, "a number needs no TensorFlow"
    assert changes([Finding("prefetch-missing", "warning", "map", None, "slow", "")]).diff == ""


def test_one_of_two_calls_that_lacks_it_is_plain() -> None:
    body = "d = d.map(f, num_parallel_calls=tf.data.AUTOTUNE).map(g)"
    assert changed(body, "parallel-calls-missing", "map", 2) == [
        "d = d.map(f, num_parallel_calls=tf.data.AUTOTUNE).map(g, num_parallel_calls=tf.data.AUTOTUNE)"
    ]


def test_several_files_and_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    path.write_text(HEAD + "d = d.batch(8)\n")
    findings = [
        Finding("drop-remainder-missing", "error", "batch", f"{path}:2", "", ""),
        Finding("prefetch-missing", "warning", "batch", f"{path}:2", "", ""),
        Finding("repeat-missing", "warning", "batch", f"{path}:2", "", ""),
        Finding("drop-remainder-missing", "error", "batch", f"{tmp_path}/gone.py:2", "", ""),
    ]
    text = changes(findings).diff
    assert f"--- a{path}" in text
    assert "+d = d.repeat().batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)\n" in text
    assert "gone" not in text


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        ("batch", "d = d.map(f).batch(8)", "d = d.map(f).repeat().batch(8)"),
        ("batch", "d = (d.map(f) ).batch(8)", "d = (d.map(f) ).repeat().batch(8)"),
        ("batch", "d = tf.data.Dataset.batch(d, 8)", "d = tf.data.Dataset.batch(d, 8).repeat()"),
        ("map", "d = d.batch(8).map(f)", "d = d.batch(8).map(f).repeat()"),
        ("map", "d = d.batch(8).map(f).prefetch(1)", "d = d.batch(8).map(f).repeat().prefetch(1)"),
        (
            "make_csv_dataset",
            "d = make.make_csv_dataset(p, 8, num_epochs=1).map(f)",
            "d = make.make_csv_dataset(p, 8, num_epochs=None).map(f)",
        ),
    ],
)
def test_epochs_share_a_batch(op: str, before: str, after: str) -> None:
    assert changed(before, "repeat-missing", op, 2) == [after]


def test_tensorflow_that_comes_from_another_module_is_known() -> None:
    finding = Finding("prefetch-missing", "warning", "batch", "data.py:2", "", "")
    source = "from base import *\nd = tf.data.Dataset.range(9).batch(2)\n"
    text = changes([finding], lambda path: source).diff
    assert "+d = tf.data.Dataset.range(9).batch(2).prefetch(tf.data.AUTOTUNE)" in text


def test_what_is_not_in_the_diff_is_named_with_the_reason() -> None:
    small = Finding("shuffle-buffer-small", "warning", "shuffle", "data.py:2", "", "shuffle(80)", None, 80)
    findings = [
        replace(small, by_hand="take() depends on the order"),
        Finding("shard-missing", "warning", "range", "data.py:2", "", ""),
        Finding("prefetch-missing", "warning", "shuffle", "data.py:2", "", ""),
        Finding("parallel-calls-missing", "warning", "map", "data.py:3", "", ""),
        Finding("repeat-missing", "warning", "batch", None, "", ""),
    ]
    source = "import tensorflow\nd = tensorflow.data.Dataset.range(9).shuffle(8)\nd.map(f).map(f)\n"
    found = changes(findings, lambda path: source)
    assert found.diff == ""
    assert {(finding.id, reason) for finding, reason in found.left} == {
        ("shuffle-buffer-small", "take() depends on the order"),
        ("shard-missing", "it is more than an argument of one call"),
        ("prefetch-missing", "the file does not know TensorFlow as tf"),
        ("parallel-calls-missing", "the file does not know TensorFlow as tf"),
        ("repeat-missing", "it is not made on a line of yours"),
    }
