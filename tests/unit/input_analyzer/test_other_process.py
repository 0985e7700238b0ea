"""What workers share out has to be the same in every process, which one process alone cannot show."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.analysis import Finding
from input_analyzer.analyze import Examined, applied_note, unproved
from input_analyzer.gains import measure_gains
from input_analyzer.measure.copies import Launch
from input_analyzer.other_process import concluded
from input_analyzer.standalone import called
from input_analyzer.tf.graph import trace
from input_analyzer.tf.shared_order import digest_of_order

_PROGRAM = """
import os
import tensorflow as tf
from input_analyzer.handover import InputProgram, take_over
def f():
    names = sorted((f"part-{number}" for number in range(100)), key={key})
    return tf.data.Dataset.from_tensor_slices(names).map(tf.strings.length).batch(4).repeat()
take_over(InputProgram("tensorflow", f, lambda shard: f(), lambda shard: iter(())))
"""
_MISSING = Finding("shard-missing", "warning", "from_tensor_slices", "data.py:7", "read twice", "shard()")


def _digest(values: Any, change: Any = lambda dataset: dataset) -> str:
    made = lambda: change(tf.data.Dataset.from_tensor_slices(values))  # noqa: E731
    return digest_of_order(trace(made, eager=True), 2)


def test_the_digest_is_that_of_data_and_order_up_to_the_shard() -> None:
    values = np.arange(10)
    plain = _digest(values, lambda dataset: dataset.shuffle(5).batch(2))
    assert plain == _digest(values, lambda dataset: dataset.shuffle(7, 3).map(lambda x: x * 3).batch(5))
    assert plain != _digest(values[::-1].copy(), lambda dataset: dataset.shuffle(5).batch(2))


def test_an_order_that_another_process_has_not_is_not_shared_out() -> None:
    def both(digest: str, other: str | None) -> tuple[bool, tuple[str, ...]]:
        (finding,), notes = concluded([_MISSING], digest, other)
        return finding.proved, notes

    assert both("a", "a") == (True, ())
    assert both("", None) == (True, ())
    assert both("a", "b") == both("a", None) == (False, ())
    # Who shares them out already is told.
    others, (note,) = concluded([replace(_MISSING, id="dtype-wide")], "a", "b")
    assert others[0].proved
    assert "some records are read by several of them" in note
    facts = {"applied": ["shard", "batch"], "applied_by": {"shard-missing": ["shard"], "more": ["batch"]}}
    left = unproved(concluded([_MISSING], "a", "b")[0])
    assert applied_note(Examined(facts, 0), (), left).startswith("Measured with --apply: batch. The")


@pytest.mark.parametrize(("key", "proved"), [(hash, False), (str, True)])
def test_an_order_by_hash_shows_in_a_second_process(tmp_path: Path, key: Any, proved: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.replace("{key}", key.__name__))
    names = sorted((f"part-{number}" for number in range(100)), key=key)
    digest = _digest(names, lambda dataset: dataset.map(tf.strings.length).batch(4).repeat())
    launch = Launch(
        (sys.executable, str(program)), {**os.environ, "PYTHONHASHSEED": "random"}, 60.0, None, "here"
    )
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    told = measure_gains(
        (_MISSING,), launch, cpus, 1.0, (8 << 30, 1 << 20), lambda doing: None, digest=digest
    )
    assert ("second process of the program has other data" in told.findings[0].recommended) is not proved
    assert told.notes == ()


def test_a_function_finds_its_role_when_it_is_called_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "roles.py").write_text("import os\ndef f():\n    return os.environ['TF_CONFIG']\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("TF_CONFIG", raising=False)
    _, alone = called(f"{tmp_path}/roles.py:f", lambda: None, lambda doing: None)
    assert "chief" in alone
    assert "TF_CONFIG" not in os.environ
    monkeypatch.setenv("TF_CONFIG", "that of a copy")
    assert called(f"{tmp_path}/roles.py:f", lambda: None, lambda doing: None)[1] == "that of a copy"
