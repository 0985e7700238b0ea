"""An imported step as the program of a run: with what the CS system needs beside the user's own outputs."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from cgc.cirh.interface import step_interface
from cs_runtime.program import StepProgram
from cs_runtime.range_checks import add_range_checks
from cs_runtime.skipped_steps import count_skipped_steps
from cs_runtime.step_checks import StepCheck
from cs_toolkit.step import Mode


def step_program(
    module: ModuleOp,
    mode: Mode,
    batch_size: int,
    input_names: Sequence[str],
    model: str = "",
    checks: Sequence[StepCheck] = (),
) -> StepProgram:
    """The program of a step.

    Args:
        module: The step as an importer has made it. It gets outputs for the ranges of its labels and ids, and
            a global step that counts every batch.
        mode: What the step does.
        batch_size: Samples in one batch.
        input_names: What the user calls the batch inputs, in their order.
        model: What the user calls the model.
        checks: What must hold in every step besides the ranges.

    Raises:
        cgc.errors.InvalidModuleError: the module is no step.
    """
    if mode == "train":
        count_skipped_steps(module)
    ranges = add_range_checks(module, input_names)
    return StepProgram(module, step_interface(module), mode, batch_size, (*checks, *ranges), model)
