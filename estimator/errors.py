"""What can go wrong in the TensorFlow front end: what was got, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise

from cs_toolkit.errors import ToolkitError, UsageError

_FIXED_SHAPE = "Use batch(batch_size, drop_remainder=True), and pad or set_shape() what varies in size"


class EstimatorError(ToolkitError):
    """An expected failure of the front end."""


class CallError(EstimatorError, UsageError, ValueError):
    """A call that cannot be right, whatever the data; a ValueError as `tf.estimator` raised."""


class UnknownFieldError(CallError, TypeError):
    """A keyword that the class does not have; a TypeError as for any other class."""


class ModelFnError(CallError):
    """`model_fn` has the wrong arguments or returned something that cannot be used."""


class InputFnError(CallError):
    """`input_fn` has the wrong arguments or returned something that cannot be used."""


class InputShapeError(InputFnError):
    """A component of a batch has a size that is not known before the run."""

    def __init__(self, component: str, shape: Sequence[int | None] | None) -> None:
        self.fault_fields = {
            "node": component,
            "shape": None if shape is None else tuple(shape),
            "what_to_do": _FIXED_SHAPE,
        }
        got = "an unknown number of dimensions" if shape is None else f"the shape {_shape_text(shape)}"
        super().__init__(
            f"component '{component}' of the input has {got}, but the CS system is programmed for one fixed "
            f"shape. {_FIXED_SHAPE}"
        )


class ComponentTypeError(InputFnError):
    """A component of a batch has an element type that the CS system does not have."""

    def __init__(self, component: str, dtype: str, what_to_do: str) -> None:
        self.fault_fields = {"node": component, "dtype": dtype, "what_to_do": what_to_do}
        super().__init__(
            f"component '{component}' of the input has the type {dtype}, which the CS system does not "
            f"compute in; {what_to_do}"
        )


class UnsupportedOnCsError(CallError):
    """Something that TensorFlow on a CPU does, but a run on the CS system does not."""


class CpuLimitError(EstimatorError):
    """TensorFlow has no way to do something on a CPU; off the CS system the program cannot run as it is."""

    def __init__(self, limit: str, node: str, line: str | None, cause: str, what_to_do: str) -> None:
        self.fault_fields = {"node": node, "source": line, "what_to_do": what_to_do}
        where = f"node '{node}'" + (f", line {line}" if line else "")
        super().__init__(f"TensorFlow on this CPU {limit}: {where} ({cause}). {what_to_do}")


class CheckpointWriteError(EstimatorError):
    """A checkpoint could not be written; older checkpoints are as they were."""

    def __init__(self, prefix: str, cause: str, newest_good: str | None) -> None:
        kept = (
            f"the newest good checkpoint is '{newest_good}'"
            if newest_good
            else "there is no older checkpoint"
        )
        super().__init__(
            f"cannot write checkpoint '{prefix}': {cause}; {kept}. "
            "Free space or give a writable directory (--model_dir); a new start continues from there"
        )


class CheckpointReadError(EstimatorError):
    """A checkpoint is missing, damaged, or of another model."""

    def __init__(self, checkpoint: str, cause: str) -> None:
        super().__init__(
            f"cannot restore checkpoint '{checkpoint}': {cause}. Give the checkpoint of this very model, "
            "or an empty model_dir to start anew"
        )


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name nearest to `name`, else the empty string."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def essence(error: Exception) -> str:
    """What an error says, without the graph and the stacks that TensorFlow puts around it."""
    text = str(getattr(error, "message", None) or error)
    lines = [line.strip() for line in text.splitlines() if line.strip() not in ("", "Graph execution error:")]
    after_node = [later for line, later in pairwise(lines) if line.startswith("Node: ")]
    return next(iter(after_node or lines), type(error).__name__)


def _shape_text(shape: Sequence[int | None]) -> str:
    sizes = ", ".join("None" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"
