"""Diffs of the user's source: changed and unchanged calls."""

from __future__ import annotations

import os
import pty
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.errors import UsageError
from csrun.errors import CsrunError
from input_analyzer import source_changes
from input_analyzer.source_changes import plan_changes
from input_rules.findings import Finding

HEAD = "import tensorflow as tf\n"


def changed(
    body: str, identifier: str, op: str, line: int, recommended: str = "", value: int | None = None
) -> list[str]:
    """The lines that a diff adds to a source of two lines or more."""
    source = HEAD + textwrap.dedent(body)
    finding = Finding(identifier, "warning", op, f"data.py:{line}", "slow", recommended, None, value)
    text = plan_changes([finding], lambda path: source).diff
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


def test_complicated_calls_are_unchanged() -> None:
    assert changed("d = d.map(f).map(g)", "parallel-calls-missing", "map", 2) == []
    assert changed("d = d.map(f, **settings)", "parallel-calls-missing", "map", 2) == []
    assert changed("d = d.map(f)", "random-state", "map", 2) == []
    finding = Finding("parallel-calls-missing", "warning", "map", "data.py:1", "slow", "")
    assert plan_changes([finding], lambda path: "import tensorflow\nd = d.map(f)\n").diff == ""
    assert plan_changes([finding], lambda path: "d = d.map(\n").diff == ""
    number = replace(finding, id="parallel-reads-missing", value=4)
    written = plan_changes([number], lambda path: "d = d.map(f)\n").diff
    assert "+d = d.map(f, num_parallel_reads=4)\n" in written, "a number needs no TensorFlow"
    assert plan_changes([Finding("prefetch-missing", "warning", "map", None, "slow", "")]).diff == ""


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
    text = plan_changes(findings).diff
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
    text = plan_changes([finding], lambda path: source).diff
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
    found = plan_changes(findings, lambda path: source)
    assert found.diff == ""
    assert {(finding.id, reason) for finding, reason in found.unchanged} == {
        ("shuffle-buffer-small", "take() depends on the order"),
        ("shard-missing", "it takes more than changing an argument of one call"),
        ("prefetch-missing", "the file does not import TensorFlow as tf"),
        ("parallel-calls-missing", "the file does not import TensorFlow as tf"),
        ("repeat-missing", "no line of your source creates it"),
    }


BEFORE = b"import tensorflow as tf\r\n\r\nd = d.batch(8)\r\n"
AFTER = b"import tensorflow as tf\r\n\r\nd = d.batch(8, drop_remainder=True)\r\n"
ANALYZER = Path(__file__).resolve().parents[3] / "bin" / "cs_input_analyzer"


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "data.py"
    path.write_bytes(BEFORE)
    path.chmod(0o750)
    return path


def shown(path: Path) -> Any:
    return source_changes.show_diff(
        "us", [Finding("drop-remainder-missing", "error", "batch", f"{path}:3", "", "")]
    )


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def test_a_diff_is_shown_and_the_file_stays_until_it_is_written(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = shown(source)
    assert "+d = d.batch(8, drop_remainder=True)" in capfd.readouterr().out
    assert source.read_bytes() == BEFORE
    source_changes.write_changes("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == AFTER, "line ends are kept"
    assert source.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in source.parent.iterdir()] == ["data.py"]
    assert f"changed: {source}" in capfd.readouterr().err


def test_files_that_git_cannot_restore_are_refused_unless_forced(source: Path) -> None:
    folder = source.parent
    git(folder, "init")
    files = shown(source)
    with pytest.raises(UsageError, match=r"data\.py: there are uncommitted changes.*--allow-dirty"):
        source_changes.write_changes("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == BEFORE
    git(folder, "add", ".")
    git(folder, "commit", "-m", "as it was")
    (folder / "other.py").write_text("x = 1\n")
    source_changes.write_changes("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == AFTER
    with pytest.raises(UsageError, match="uncommitted"):
        source_changes.write_changes("us", files, yes=True, allow_dirty=False)
    source.write_bytes(BEFORE + b"x = 1\n")
    source_changes.write_changes("us", shown(source), yes=True, allow_dirty=True)
    assert source.read_bytes() == AFTER + b"x = 1\n"


def test_a_file_that_has_changed_meanwhile_is_not_written(source: Path) -> None:
    files = shown(source)
    source.write_bytes(b"# again\n" + BEFORE)
    with pytest.raises(CsrunError, match="was changed since it was read"):
        source_changes.write_changes("us", files, yes=True, allow_dirty=False)
    assert source.read_bytes() == b"# again\n" + BEFORE


@pytest.mark.parametrize(("answer", "after"), [("y\n", AFTER), ("\n", BEFORE), ("", BEFORE)])
def test_the_user_is_asked(
    source: Path,
    answer: str,
    after: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    read: Callable[[], str] = lambda: answer  # noqa: E731
    monkeypatch.setattr("sys.stdin", type("Keys", (), {"readline": staticmethod(read)}))
    source_changes.write_changes("us", shown(source), yes=False, allow_dirty=False)
    assert capfd.readouterr().err.startswith("Write the changes to this file? [y/N] ")
    assert source.read_bytes() == after


def test_without_a_terminal_nobody_can_be_asked() -> None:
    with pytest.raises(UsageError, match="expected --yes, or --apply-dry-run"):
        source_changes.check_can_confirm(yes=False)
    source_changes.check_can_confirm(yes=True)


PROGRAM = """import tensorflow as tf

def f():
    return tf.data.Dataset.range(1000).repeat().batch(10)
"""


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_command_writes_changes_that_the_user_accepts(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAM)
    dry = [str(ANALYZER), "--apply-dry-run", "--seconds=1", "mine.py:f"]
    done = subprocess.run(dry, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # On a busy machine a prefetch may be measured to cost time, and is withdrawn.
    changed = PROGRAM.replace("batch(10)", "batch(10, drop_remainder=True)")
    assert changed.splitlines()[-1] in done.stdout
    assert file.read_text() == PROGRAM, "the source stays as it is"
    ours, theirs = pty.openpty()
    try:
        words = [str(ANALYZER), "--apply", "--seconds=1", "mine.py:f"]
        asked = subprocess.Popen(words, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
        os.write(ours, b"y\n")
        text = b""
        while b"changed: " not in text:
            text += os.read(ours, 4096)
        assert asked.wait(60) == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert file.read_text().replace(".prefetch(tf.data.AUTOTUNE)", "") == changed
