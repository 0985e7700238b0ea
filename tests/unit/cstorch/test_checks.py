"""Statements of a program that raise for some values: the step continues, and its run checks them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from cgc.cirh.interface import step_interface
from cgc.importers.aten import check_output, import_step
from cgc.lowering.interpret import step_function
from cs_runtime.errors import CheckFailedError
from cs_runtime.program import ProgramCheck, check_steps
from cs_system.client import StepOutputs
from cstorch.errors import TensorReadError
from cstorch.tracing.values import to_array

from .test_library_models import of_library
from .test_tracing import traced

CLASSES = 5


def _asserted(y: torch.Tensor) -> None:
    assert (y < CLASSES).all(), f"labels must be below {CLASSES}"


def _raised(y: torch.Tensor) -> None:
    if y.max() >= CLASSES:
        limit = f"{CLASSES} classes"
        raise ValueError(f"got {y.max()} of {limit}")


def _item(y: torch.Tensor) -> None:
    if y.max().item() >= CLASSES:
        raise ValueError("too large")


def _number(y: torch.Tensor) -> None:
    if int(y.max()) >= CLASSES or int(y.min()) < 0:
        raise ValueError("too large" + " or small")


def _joined(y: torch.Tensor) -> None:
    assert y.min() >= 0 and not (y >= CLASSES).any()  # noqa: PT018


def _one_of_two(y: torch.Tensor) -> None:
    if (y >= CLASSES).any() and CLASSES > 3 and (y > 1).any():
        raise RuntimeError


def _otherwise(y: torch.Tensor) -> None:
    if bool((y < CLASSES).all()):
        y.sum()
    else:
        raise ValueError("too large")


def _chain(y: torch.Tensor) -> None:
    assert -1 < y.min() and 0 <= y.max() < CLASSES  # noqa: PT018, SIM300


def _each(y: torch.Tensor) -> None:
    if any(part.item() >= CLASSES for part in y):
        raise IndexError("too large")


def _of_torch(y: torch.Tensor) -> None:
    torch._assert((y < CLASSES).all(), "too large")
    torch._check_tensor_all(y < CLASSES, lambda: "not all")
    torch._check(bool(y.shape[0] == 3))


def _named(y: torch.Tensor) -> None:
    def check(condition: torch.Tensor, msg: str) -> None:
        torch._check_tensor_all(condition)

    check(y < CLASSES, f"got {y.max()}")


def _at_places(y: torch.Tensor) -> None:
    found, weights = torch.zeros(3, device=y.device), torch.ones(CLASSES, 3, device=y.device)
    for place in (functional.one_hot(y.long(), 10).sum(0) > 0).nonzero():
        found += weights[place[0]]


CHECKS: dict[Callable[[torch.Tensor], None], str] = {
    _asserted: "AssertionError: labels must be below 5; it checks `(y < CLASSES).all()`",
    _raised: "ValueError: got y.max() of 5 classes; it checks `y.max() >= CLASSES`",
    _item: "ValueError: too large; it checks `y.max().item() >= CLASSES`",
    _number: "ValueError: too large or small; it checks `int(y.max()) >= CLASSES or int(y.min()) < 0`",
    _joined: "AssertionError; it checks `y.min() >= 0 and (not (y >= CLASSES).any())`",
    _one_of_two: "RuntimeError; it checks `(y >= CLASSES).any() and CLASSES > 3 and (y > 1).any()`",
    _otherwise: "ValueError: too large; it checks `bool((y < CLASSES).all())`",
    _chain: "AssertionError; it checks `-1 < y.min() and 0 <= y.max() < CLASSES`",
    _each: "IndexError: too large; it checks `any((part.item() >= CLASSES for part in y))`",
    _of_torch: "AssertionError: too large",
    _at_places: "IndexError: index 7 is out of bounds for size 5",
    _named: "RuntimeError: got (a value of the step)",
}


def run(check: Callable[[torch.Tensor], Any], batches: list[list[int]]) -> StepOutputs:
    """Runs a step with a check on the labels of each batch, as a chief does."""
    inputs = [torch.tensor(batch) for batch in batches]

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.int()
        check(y)
        return y.sum()

    found = traced(step, 3)
    graph = found.graph
    module = import_step(graph, mode="eval", seed=0)
    function, names = step_function(module), [spec.name for spec in step_interface(module).outputs]
    rows = [function((np.asarray(0),), (to_array(batch.float()),))[1] for batch in inputs]
    outputs = {name: np.stack([np.asarray(row[i]) for row in rows]) for i, name in enumerate(names)}
    checks = [ProgramCheck(f"output_{check_output(i)}", each.error) for i, each in enumerate(graph.checks)]
    assert checks
    return check_steps(checks, StepOutputs(0, len(rows), outputs, 3 * len(rows)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_check_fails_at_the_step_whose_values_break_it(check: Callable[[torch.Tensor], Any]) -> None:
    kept = run(check, [[0, 4, 2], [1, 2, 3]])
    assert set(kept.outputs) == {"output_0"}
    with pytest.raises(CheckFailedError) as caught:
        run(check, [[0, 4, 2], [1, 2, 7], [9, 9, 9]])
    assert caught.value.step == 2
    where, error = str(caught.value).split(": ", 1)
    assert where.startswith(f"in step 2, at {__file__}:")
    assert error == CHECKS[check]


def test_a_check_of_a_library_names_both_lines() -> None:
    f = of_library("def f(x):\n    torch._check_tensor_all(x > 0)")
    found = traced(lambda x: f(x) or x.sum(), 3)
    (check,) = found.graph.checks
    assert check.error.endswith("(in layers/mask.py:2): RuntimeError: a condition is not true")


FLAG = """
def f(x):
    rare = x > 2
    has_rare = rare.any().item()
    return x.exp() if has_rare else x
"""


def test_a_library_that_looks_for_a_rare_kind_is_recorded_without_it(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "layers.py"
    file.parent.mkdir()
    file.write_text(FLAG)
    names: dict[str, Any] = {}
    exec(compile(FLAG, str(file), "exec"), names)
    assert run(names["f"], [[0, 1, 2]]).outputs["output_0"] == [3]
    with pytest.raises(
        CheckFailedError, match=r"step 2, .*layers\.py:4\): ValueError: `rare\.any\(\)` is true"
    ):
        run(names["f"], [[0, 1, 2], [1, 2, 3]])
    with pytest.raises(TensorReadError):  # a program of a user's own
        traced(lambda x: x if bool((x > 2).any()) else -x, 3)


def test_conditions_that_hold_for_all_steps_are_not_checked() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        known = torch.arange(3, device=x.device)
        assert (known < 3).all()
        if known.max() > 3 or (known.max() > 1 and not known.any()):
            raise ValueError
        return x.sum()

    assert not traced(step, 3).graph.checks
    with pytest.raises(AssertionError, match="none"):
        traced(lambda x: torch._assert((torch.ones(2, device=x.device) > 1).all(), "none"), 3)


def test_statements_that_compute_the_same_on_one_way_go_it() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        mask = x > 1
        if not mask.any():
            mask = None
        seen = x <= 1
        if seen.all():
            seen = None
        assert mask is not None and seen is not None  # noqa: PT018
        if not torch.isfinite(x).all():
            most = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-most, max=most)
        return x.masked_fill(mask, 0).sum()

    graph = traced(step, 3).graph
    assert not graph.checks
    assert "aten.clamp.default" in [node.op for node in graph.nodes]


def test_distributions_do_not_read_their_arguments() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        normal = torch.distributions.Normal(x, x.exp())
        return normal.log_prob(x + 1).sum() + torch.distributions.Categorical(logits=x).entropy()

    assert not traced(step, 3).graph.checks
    with pytest.raises(ValueError, match="invalid values"):
        torch.distributions.Normal(torch.zeros(1), -torch.ones(1))
    strict = lambda x: torch.distributions.Normal(x, x.exp(), validate_args=True).mean.sum()  # noqa: E731
    (check, other) = traced(strict, 3).graph.checks
    assert "ValueError: Expected parameter scale" in other.error + check.error


def _chosen(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.max() > 1 else x


def _skipped(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 1:
        return x * 2
    return x


def _both_raise(x: torch.Tensor) -> None:
    if x.max() > 1:
        raise ValueError("large")
    else:  # noqa: RET506
        raise ValueError("small")


@pytest.mark.parametrize("choose", [_chosen, _skipped, _both_raise], ids=lambda choose: choose.__name__)
def test_a_choice_by_values_is_no_check(choose: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(TensorReadError, match=r"test_checks\.py:\d+: .*torch\.where"):
        traced(choose, 3)
