"""Values of a step for TensorBoard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from cstorch.backends import on_cpu
from cstorch.errors import ClosureError
from cstorch.loop import running
from cstorch.steps import step_closure


class Writer(Protocol):
    """A writer of event files, such as `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Writes a number."""
        ...

    def add_tensor(self, tag: str, tensor: torch.Tensor, global_step: int) -> Any:
        """Writes a tensor."""
        ...


@dataclass(frozen=True)
class _Summary:
    kind: Literal["scalar", "tensor"]
    value: torch.Tensor

    def write(self, writer: Writer, name: str, step: int) -> None:
        if self.kind == "scalar":
            writer.add_scalar(name, float(self.value.detach()), step)
        else:
            writer.add_tensor(name, self.value.detach().cpu(), step)


def summarize_scalar(name: str, tensor: torch.Tensor | float) -> None:
    """Summarizes a number of every step.

    Called in the step, or behind it. Where the `DataExecutor` has a writer, that gets the value at the step
    of the training, or of the evaluation alone, or of this loop counted from the writer's `base_step`; else
    `save_summaries` writes it.

    Args:
        name: what it is called in TensorBoard.
        tensor: one element.

    Raises:
        ClosureError: outside of a loop.
    """
    _noted("scalar", name, tensor)


def summarize_tensor(name: str, tensor: torch.Tensor) -> None:
    """Summarizes a tensor of every step; see `summarize_scalar`."""
    _noted("tensor", name, tensor)


scalar_summary = summarize_scalar


@step_closure
def save_summaries(writer: Writer, step: int) -> None:
    """Writes what the step of this turn has summarized.

    Args:
        writer: event files.
        step: the number of the step in TensorBoard.
    """
    loop = running()
    for name, summary in () if loop is None else loop.summaries.items():
        summary.write(writer, name, step)


@step_closure
def _noted(kind: Literal["scalar", "tensor"], name: str, value: torch.Tensor | float) -> None:
    loop = running()
    if loop is None:
        if on_cpu():
            return
        raise ClosureError(
            f"'{name}' is summarized outside of a loop over a DataLoader, expected a call inside of the "
            "step, or after it in the loop"
        )
    summary = loop.summaries[name] = _Summary(kind, torch.as_tensor(value))
    if loop.writer is not None:
        base = getattr(loop.writer, "base_step", None)
        summary.write(loop.writer, name, loop.number if base is None else base + loop.turn)
