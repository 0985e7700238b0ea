"""Diffs of the user's source: what they change, and what they leave alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from input_analyzer.analysis import Finding
from input_analyzer.source_diff import diff

HEAD = "import tensorflow as tf\n"


def changed(
    body: str, identifier: str, op: str, line: int, recommended: str = "", value: int | None = None
) -> list[str]:
    """The lines that a diff adds to a source of two lines or more."""
    source = HEAD + textwrap.dedent(body)
    finding = Finding(identifier, "warning", op, f"data.py:{line}", "slow", recommended, None, value)
    text = diff([finding], lambda path: source)
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
        ("prefetch-missing", "batch", "return d.batch(8)", "return d.batch(8).prefetch(tf.data.AUTOTUNE)"),
        ("prefetch-empty", "prefetch", "d = d.prefetch(0)", "d = d.prefetch(tf.data.AUTOTUNE)"),
        ("order-not-deterministic", "map", "d.map(f, deterministic=False)", "d.map(f, deterministic=True)"),
    ],
)
def test_mends(identifier: str, op: str, before: str, after: str) -> None:
    assert changed(before, identifier, op, 2) == [after]


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
    assert diff([finding], lambda path: "import tensorflow\nd = d.map(f)\n") == ""
    assert diff([finding], lambda path: "d = d.map(\n") == ""
    assert diff([Finding("prefetch-missing", "warning", "map", None, "slow", "")]) == ""


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
    text = diff(findings)
    assert f"--- a/{path}" in text
    assert "+d = d.batch(8, drop_remainder=True).repeat().prefetch(tf.data.AUTOTUNE)\n" in text
    assert "gone" not in text
