"""Files that workers share out, counted for the recommended layout."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from input_analyzer.analyze import ExaminedInput
from input_analyzer.measure.link import Order
from input_analyzer.tf.examine import examine
from input_rules.findings import Finding, Gain
from input_rules.input_export import InputProgram
from input_rules.tf.inspection import inspect

RECORDS = np.zeros((100, 4), np.float32)


def slices(array: Any = RECORDS) -> Any:
    return tf.data.Dataset.from_tensor_slices(array)


def finish(dataset: Any) -> Any:
    return dataset.repeat().batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


RECORDS = np.zeros((100, 4), np.float32)


def finding(severity: Any, gain: Gain | None = None) -> Finding:
    return Finding("rule", severity, "map", "data.py:7", "it is slow", "map(fast)", gain)


def test_files_are_counted_for_the_recommended_layout(tmp_path: Path) -> None:
    for name in range(5):
        (tmp_path / f"{name}.txt").write_text("1\n2\n")
    names = sorted(map(str, tmp_path.iterdir()))

    def of_listed(workers: int, index: int) -> Any:
        listed = tf.data.Dataset.list_files(f"{tmp_path}/*.txt", shuffle=False)
        mine = listed.shard(workers, index) if workers > 1 else listed
        return finish(mine.interleave(tf.data.TextLineDataset))

    def of_sliced(workers: int, index: int) -> Any:
        return finish(tf.data.TextLineDataset(names[index::workers]))

    def of_records(workers: int, index: int) -> Any:
        return finish(tf.data.TextLineDataset(names).shard(workers, index))

    program = InputProgram(
        "tensorflow", of_listed, lambda s: of_listed(s.count, s.index), lambda s: iter(()), eager=True
    )
    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    split = examine(program, order, lambda doing: None).split
    assert split is not None
    assert (split.files, split.op) == (5, "list_files")
    assert Path(str(split.source).rpartition(":")[0]).name == Path(__file__).name
    assert inspect(of_records).split is None
    sliced = inspect(of_sliced).split
    assert sliced is not None
    assert (sliced.files, sliced.op) == (5, "TextLineDataset")

    examined = ExaminedInput({"split": asdict(split)}, 0)
    assert examined.findings_with(5, ()) == examined.findings_with(1, ()) == ()
    known = (finding("error"), finding("info"))
    grave, uneven, hint = examined.findings_with(3, known)
    assert (grave, hint) == known
    assert uneven.id == "files-not-divisible"
    assert uneven.message.startswith("5 files for 3 workers: some workers have fewer records")
    assert uneven.recommended == (
        "1 or 5 workers (the chief's task not counted), or a number of files that 3 divides: 3 or 6"
    )
    (lacking,) = examined.findings_with(7, ())
    assert lacking.severity == "error"
    assert "some workers have no file" in lacking.message
    assert lacking.recommended.startswith("5 workers (")
    assert ExaminedInput({"split": None}, 0).findings_with(3, known) == known
    # Where the run's workers are known, the log of train says it too.
    assert (
        "5 files for 2 workers"
        in {f.id: f for f in inspect(of_listed, workers=2).findings}["files-not-divisible"].message
    )
