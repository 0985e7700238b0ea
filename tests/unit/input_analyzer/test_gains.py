"""Measured gains of changes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import tensorflow as tf

from input_analyzer.gains import (
    Compared,
    Ratio,
    add_gains,
    compare_all,
    measure_gains,
    rate_gain,
    select_compared,
)
from input_analyzer.measure.copies import Launch
from input_analyzer.report.wording import withdrawal
from input_analyzer.tf.compare import compare
from input_rules.findings import Finding, Gain
from input_rules.input_export import InputProgram


def finding(identifier: str, gain: Gain | None = None) -> Finding:
    return Finding(identifier, "warning", "map", "data.py:7", "it is slow", "map(fast)", gain)


def test_only_findings_that_can_be_tried_are_compared() -> None:
    assert select_compared([finding("shard-missing"), finding("dtype-wide")]) == {}
    several = [finding(name) for name in ("cycle-length-fixed", "prefetch-empty", "cycle-length-fixed")]
    assert select_compared([*several, finding("repeat-missing")]) == {
        "cycle-length-fixed": None,
        "prefetch-empty": None,
    }


def test_measured_gains_in_words() -> None:
    assert str(rate_gain((1.82, 1.7, 1.95), 2)) == "measured: 1.82 times the rate with 2 CPUs (1.70 to 1.95)"
    assert rate_gain((1.0, 0.97, 1.02), 1).text == "no difference with 1 CPU (0.97 to 1.02 times the rate)"
    assert "noise" in rate_gain((1.1, 0.7, 1.6), 1).text
    kept = finding("dtype-wide", Gain("expected", "less"))
    found = add_gains([kept, finding("parallel-calls-fixed")], {"parallel-calls-fixed": (1.9, 1.8, 2.0)}, 2)
    assert found[0] == kept
    assert found[1].gain == Gain(
        "measured", "1.90 times the rate with 2 CPUs (1.80 to 2.00)", 1.9, 1.8, 2.0, 2
    )
    assert Finding.from_json(json.loads(json.dumps(asdict(found[1])))) == found[1]
    alone, ratio = [finding("cycle-length-fixed")], {"cycle-length-fixed": (0.9, 0.85, 0.95)}
    slower = add_gains(alone, ratio, 2)
    assert slower[0].withdrawn
    assert withdrawal(slower[0]) == "withdrawn: measured 0.90 times as fast with 2 CPUs (0.85 to 0.95)"
    assert add_gains(alone, {"cycle-length-fixed": (0.7, 0.4, 1.2)}, 2)[0].withdrawn, "it costs, if anything"
    assert not add_gains(alone, {"cycle-length-fixed": (0.99, 0.9, 1.1)}, 2)[0].withdrawn
    twice = add_gains([finding("cycle-length-fixed")] * 2, {"cycle-length-fixed": (2.0, 1.9, 2.1)}, 2)
    assert str(twice[0].gain).endswith("(1.90 to 2.10), all 2 findings of this kind together")


def test_gains_that_cannot_be_measured_leave_what_is_expected() -> None:
    expected = (finding("prefetch-empty", Gain("expected", "up to twice the rate", 2.0)),)
    launch = Launch((sys.executable, "-c", "pass"), dict(os.environ), 20.0, None, "here")
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    failed = measure_gains(expected, launch, cpus, 1.0, (1 << 30, 1), lambda doing: None)
    assert failed.findings == expected
    assert failed.notes[0].startswith("Gains could not be measured: the program exited")
    full = measure_gains(expected, launch, cpus, 1.0, (1 << 30, 1 << 29), lambda doing: None)
    assert full.findings == expected
    assert full.notes == ("Gains were not measured: two copies of the input do not fit into the memory.",)


SLOWER, FASTER, SAME = (0.43, 0.4, 0.5), (1.8, 1.7, 1.9), (1.0, 0.98, 1.02)


def compared(measured: dict[str, Ratio | None]) -> tuple[Compared, list[str]]:
    """Compare changes whose ratios are known, alone and combined ("a+b"); return what was measured, too."""
    tried: list[str] = []

    def compare(findings: Any, say: Any) -> Ratio | None:
        tried.append("+".join(findings))
        return measured[tried[-1]]

    found = compare_all({name: None for name in measured if "+" not in name}, compare, lambda doing: None)
    return found, tried


def test_changes_are_combined_as_long_as_the_combination_gets_faster() -> None:
    ratios = {"a": (1.5, 1.4, 1.6), "b": (2.0, 1.9, 2.1), "c": (0.5, 0.36, 0.65), "d": (1.2, 1.1, 1.3)}
    measured: dict[str, Ratio | None] = {**ratios, "b+a": (2.6, 2.5, 2.7), "b+a+d": (2.5, 2.4, 2.6)}
    found, tried = compared(measured)
    assert found == Compared(ratios, ("b", "a"), (2.6, 2.5, 2.7))
    assert tried == ["a", "b", "c", "d", "b+a", "b+a+d"], "the fastest comes first, a slower one never"
    kept = add_gains([finding(name) for name in ratios], ratios, 2, found.combination)
    assert [(one.withdrawn, one.by_hand is None) for one in kept] == [
        (False, True),
        (False, True),
        (True, False),
        (False, False),
    ]
    assert str(kept[3].gain).endswith("; it adds nothing to the recommended combination")


def test_changes_that_harm_each_other_are_not_recommended_together() -> None:
    found, _ = compared({"a": (1.5, 1.4, 1.6), "b": (1.2, 1.1, 1.3), "a+b": (0.49, 0.36, 0.65)})
    assert (found.combination, found.together) == (("a",), (1.5, 1.4, 1.6))
    found, tried = compared({"a": (0.9, 0.8, 1.01), "b": None, "c": (1.1, 0.9, 1.3)})
    assert (found.combination, found.together) == ((), None), "noise is no gain"
    assert tried == ["a", "b", "c"]


def test_a_prefetch_need_not_be_faster_without_a_training_step() -> None:
    alone: dict[str, Ratio | None] = {"prefetch-missing": (1.9, 1.8, 2.0), "a": (1.5, 1.4, 1.6)}
    same, _ = compared({**alone, "a+prefetch-missing": (1.48, 1.4, 1.6)})
    assert same.combination == ("a", "prefetch-missing")
    slower, _ = compared({**alone, "a+prefetch-missing": (1.1, 1.0, 1.2)})
    assert slower.combination == ("a",)


def test_changes_that_make_it_slower_are_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        finding("parallel-calls-missing", Gain("expected", "twice", 2.0)),
        finding("prefetch-missing"),
        finding("cycle-length-fixed"),
        finding("shuffle-buffer-small", Gain("not-speed", "records are mixed")),
        finding("repeat-missing", Gain("not-speed", "all steps")),
    )
    ratios = dict(zip(select_compared(found), [SLOWER, FASTER, (0.98, 0.9, 1.02)], strict=True))

    class Measured:
        """The process that compares, which has just finished."""

        def __init__(self, *arguments: object) -> None:
            pass

        def __enter__(self) -> Measured:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def messages(self) -> list[tuple[None, dict[str, Any]]]:
            combined = {"combination": ["prefetch-missing"], "together": FASTER}
            return [(None, {"event": "compared", "alone": ratios, **combined})]

    monkeypatch.setattr("input_analyzer.gains.Copies", Measured)
    launch = Launch((), {}, 20.0, None, "here")
    gains = measure_gains(found, launch, (0,), 1.0, (1 << 30, 1), lambda doing: None)
    of_calls, of_cycle, of_buffer = (
        next(one for one in gains.findings if one.id == name)
        for name in ("parallel-calls-missing", "cycle-length-fixed", "shuffle-buffer-small")
    )
    assert (of_calls.severity, of_cycle.severity, of_buffer.severity) == ("info", "info", "warning")
    assert (of_calls.withdrawn, of_cycle.withdrawn) == (True, False)
    assert of_calls.by_hand == "it was measured to make the input slower here"
    assert (of_cycle.by_hand, of_buffer.by_hand) == (None, None)
    assert [one.severity for one in gains.findings] == ["warning"] * 3 + ["info"] * 2
    assert gains.combination == ("prefetch-missing",)
    assert gains.together is not None
    assert gains.together.times == FASTER[0]


def program(make: Callable[[], Any]) -> InputProgram:
    return InputProgram("tensorflow", make, lambda shard: make(), lambda shard: iter(()), eager=True)


def slow(x: Any) -> Any:
    """Waits, so that what else the machine does changes little."""

    def wait(value: Any) -> Any:
        time.sleep(0.01)
        return value

    return tf.ensure_shape(tf.numpy_function(wait, [x], x.dtype), x.shape)


def test_rates_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # Python that sleeps is steady from the first batch on.
    monkeypatch.setattr("input_analyzer.gains.TURN_S", 0.1)
    monkeypatch.setattr("input_analyzer.gains.WARM_UP_S", 0.1)

    def files_in_turns() -> Any:
        # Six times the same; of two in parallel, TensorFlow reads them in sequence.
        inner = tf.data.Dataset.range(6).interleave(
            lambda x: tf.data.Dataset.range(5).map(slow), cycle_length=2, block_length=5
        )
        return inner.batch(5, drop_remainder=True)

    def one_after_the_other() -> Any:
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        return files_in_turns().repeat().with_options(options)

    calls = compare(program(files_in_turns), {"parallel-calls-missing": None}, 8.0, lambda: None)
    assert calls is not None
    assert calls[0] > 1.3, "the files of a cycle are read at once, and more of them"
    assert calls[1] <= calls[0] <= calls[2]
    nothing = compare(program(files_in_turns), {"cycle-length-fixed": None}, 8.0, lambda: None)
    assert nothing is None, "an interleave without parallel calls has no such finding"
    ahead = compare(program(one_after_the_other), {"prefetch-missing": None}, 8.0, lambda: None)
    assert ahead is not None
    assert ahead[0] > 1.4, "a batch is made while a training of the same time works on the last one"
    assert ahead[1] < 2.1, "it cannot be more than twice, whatever else the machine does"


def test_slow_inputs_are_not_compared() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(100).map(slow).batch(20)

    assert compare(program(make), {"prefetch-missing": None}, 0.5, lambda: None) is None
