"""The decorators of a program's functions, and summaries of a step for TensorBoard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree

from cstorch.errors import ClosureError
from cstorch.loop.execution import ClosureCall
from cstorch.loop.on_cpu import CpuLoop
from cstorch.loop.on_cs import (
    Loop,
    Recordings,
    call_closure,
    call_closure_outside_loops,
    current_loop,
    run_step,
)
from cstorch.program import Program
from cstorch.tracing.device import DeviceTensor, is_tracing

P = ParamSpec("P")
T = TypeVar("T")


def compile_step(step_fn: Callable[P, T]) -> Callable[P, T]:
    """Compile a function that is one whole step: forward pass, backward pass and update.

    Python runs only in the first call, which is traced. Returned tensors can be read in step closures only;
    operations between steps compute with them on this CPU. On the CPU backend every call runs the function.
    """

    known: Recordings = {}

    @wraps(step_fn)
    def function(*args: P.args, **kwargs: P.kwargs) -> T:
        with _run_step_hooks(), _listening():
            return step_fn(*args, **kwargs)

    @wraps(step_fn)
    def step(*args: P.args, **kwargs: P.kwargs) -> T:
        if Program.current().on_cpu:
            loop = current_loop()
            if not isinstance(loop, CpuLoop):
                return function(*args, **kwargs)
            loop.count_step()
            returned = function(*args, **kwargs)
            loop.step_returned(returned)
            return returned
        return run_step(function, args, kwargs, known)

    return step


trace = compile_step


def step_closure(closure: Callable[P, T]) -> Callable[P, T | None]:
    """Make a function run on this CPU after the step, with the values of tensors.

    Called within the step, it runs after every step, and the call returns None. Called outside of a loop, it
    runs immediately, because tensors have values there.
    """

    @wraps(closure)
    def at_step(*args: P.args, **kwargs: P.kwargs) -> T | None:
        loop = current_loop()
        if loop is None:
            return call_closure_outside_loops(closure, *args, **kwargs)
        if is_tracing():
            assert isinstance(loop, Loop)
            loop.add_closure(
                ClosureCall(closure, pytree.tree_map_only(DeviceTensor, _as_now, (args, kwargs)))
            )
            return None
        if loop.ended:  # the program is only compiled
            return None
        return call_closure(loop, closure, *args, **kwargs)

    return at_step


@contextmanager
def _run_step_hooks() -> Iterator[None]:
    """Call the hooks of `core.compile` around the body, which runs the function of a step."""
    hooks = Program.current().hooks
    for hook in list(hooks.before_step.values()):
        hook()
    yield
    for hook in list(hooks.after_step.values()):
        hook()


@contextmanager
def _listening() -> Iterator[None]:
    """Call the hooks of `experimental.listener` with the tensors of the body, the function of a step."""
    program = Program.current()
    hooks = program.hooks.traced_tensor
    if not hooks:
        yield
        return
    models = (*program.models, *program.cpu_models)
    names = {id(module): name for model in models for name, module in model.named_modules()}
    seen: Counter[str] = Counter()

    def announce(tensor: torch.Tensor, name: str) -> None:
        for hook in list(hooks.values()):
            hook(tensor, name)

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        path = names.get(id(module))
        for tensor in pytree.tree_leaves(output):
            if path is None or not isinstance(tensor, torch.Tensor):
                continue
            name = f"{path or 'model'}.{{}}" + (f".{seen[path]}" if seen[path] else "")
            seen[path] += 1
            announce(tensor, name.format("fwd"))
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient, name=name: announce(gradient, name.format("bwd")))

    handle = register_module_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def _as_now(tensor: DeviceTensor) -> torch.Tensor:
    """Return a copy of a scalar of the state, such as a learning rate, which the step may write later."""
    is_number_of_state = tensor.host is not None and tensor.dim() == 0
    return tensor.detach().clone() if is_number_of_state else tensor


def checkpoint_closure(closure: Callable[P, T]) -> Callable[P, T | None]:
    """Make a step closure that runs only at checkpoint steps, where the state of the model can be read.

    These are the multiples of `checkpoint_steps` and the last step. A loop without `checkpoint_steps` has
    none.
    """

    @wraps(closure)
    def at_checkpoints(*args: P.args, **kwargs: P.kwargs) -> T | None:
        loop = current_loop()
        return closure(*args, **kwargs) if loop is None or loop.at_checkpoint else None

    return step_closure(at_checkpoints)


class Writer(Protocol):
    """A writer of event files, such as `torch.utils.tensorboard.SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write a number."""
        ...

    def add_tensor(self, tag: str, tensor: torch.Tensor, global_step: int) -> Any:
        """Write a tensor."""
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
    """Summarize a number of every step; call it in the step, or after it.

    If the `DataExecutor` has a writer, the value is written at the global step of a training run, at the step
    of an evaluation, or at the step of this loop plus the writer's `base_step`. Otherwise `save_summaries`
    writes it.

    Args:
        name: Name in TensorBoard.
        tensor: One element.

    Raises:
        ClosureError: The call is outside of a loop.
    """
    _summarize("scalar", name, tensor)


def summarize_tensor(name: str, tensor: torch.Tensor) -> None:
    """Summarize a tensor of every step, as `summarize_scalar` does for a number."""
    _summarize("tensor", name, tensor)


scalar_summary = summarize_scalar


@step_closure
def save_summaries(writer: Writer, step: int) -> None:
    """Write the summaries of the last step.

    Args:
        writer: Writer of event files.
        step: Number of the step in TensorBoard.
    """
    loop = current_loop()
    for name, summary in () if loop is None else loop.summaries.items():
        summary.write(writer, name, step)


@step_closure
def _summarize(kind: Literal["scalar", "tensor"], name: str, value: torch.Tensor | float) -> None:
    loop = current_loop()
    if loop is None:
        if Program.current().on_cpu:
            return
        raise ClosureError(
            f"'{name}' is summarized outside of a loop over a DataLoader, expected a call inside of the "
            "step, or after it in the loop"
        )
    summary = loop.summaries[name] = _Summary(kind, torch.as_tensor(value))
    if loop.writer is not None:
        base = getattr(loop.writer, "base_step", None)
        summary.write(loop.writer, name, loop.number if base is None else base + loop.completed)
