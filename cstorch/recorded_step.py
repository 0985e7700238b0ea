"""A step as it was recorded: what is compiled, what it returns, what runs behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import nn

from cs_toolkit.step import MODEL_STATE, Mode
from cstorch.errors import StepError
from cstorch.seed import seed_of_steps

if TYPE_CHECKING:
    from cs_runtime.program import StepProgram
    from cstorch.tracing.step import TracedStep


@dataclass(frozen=True)
class ClosureCall:
    """A call of a step closure within the step: it is repeated behind every step.

    Attributes:
        function: the user's.
        arguments: positional and named ones, with tensors of the device in them.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class RecordedStep:
    """A step that every loop can run again.

    Attributes:
        traced: its graph, state and outputs.
        returned: what the program gets from a call of it.
        closures: what runs behind it, in the order of the calls in it.
        batch_size: samples of a batch.
        models: whose parameters are its state.
    """

    traced: TracedStep
    returned: Any
    closures: Sequence[ClosureCall]
    batch_size: int
    models: Sequence[nn.Module]

    @property
    def mode(self) -> Mode:
        """A step that changes a parameter or a buffer of a model is one of a training."""
        updated = self.traced.graph.updates
        return "train" if any(name.startswith(MODEL_STATE) for name in updated) else "eval"

    @property
    def counts(self) -> bool:
        """Whether its steps are those of a training: an evaluation may change buffers too."""
        state = self.traced.state
        return any(model.training for model in self.models) or any(
            isinstance(state[name], nn.Parameter) for name in self.traced.graph.updates if name in state
        )

    @cached_property
    def program(self) -> StepProgram:
        """The step for the compiler.

        Raises:
            cgc.errors.GraphImportError: it uses operations that the CS system lacks.
        """
        from cgc.importers.aten import check_output, import_step  # late: workers have no compiler
        from cs_runtime.input_source import described_function
        from cs_runtime.step_checks import ProgramCheck
        from cs_runtime.step_program import step_program

        graph, mode = self.traced.graph, self.mode
        module = import_step(graph, mode=mode, seed=seed_of_steps())
        names = [f"input_{i}" for i in range(len(graph.inputs))]
        models = ", ".join(described_function(model) for model in self.models)
        checks = [
            ProgramCheck(f"output_{check_output(number)}", check.error)
            for number, check in enumerate(graph.checks)
        ]
        return step_program(module, mode, self.batch_size, names, models, checks)


def name_loss(step: RecordedStep) -> None:
    """Gives the first number among the outputs of a step the name that a run looks for.

    Raises:
        StepError: a training has no such output.
    """
    graph = step.traced.graph
    # State stands behind what the step returns. A float64 is refused with the lines that it comes from.
    returned = {name: tensor for name, tensor in graph.outputs.items() if name.isdigit()}
    numbers = (name for name, x in returned.items() if not x.shape and x.dtype in ("float32", "float64"))
    loss = next(numbers, None)
    if loss is not None:
        graph.outputs = {("loss" if name == loss else name): value for name, value in graph.outputs.items()}
    elif step.mode == "train":
        got = ", ".join(f"{x.dtype}{list(x.shape)}" for x in returned.values()) or "no tensor of the device"
        raise StepError(
            f"the step returns {got}, expected the loss among it, a float32 tensor without dimensions: "
            "return it, and call .float() or .mean() where that is missing"
        )
