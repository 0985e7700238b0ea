"""A graph for input functions that are written for eager execution."""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from input_analyzer.source_lines import is_users, shown

_WRITES = re.compile(
    r"Assign.*VariableOp|Resource(Scatter|StridedSliceAssign|Apply|CountUpTo)|LookupTable(Insert|Remove|Import)"
)
_LONGEST = 160
"""Characters that are shown of an error."""


class NeedsEagerError(Exception):
    """A function that can be called eagerly cannot be called in a graph.

    Attributes:
        source: The user's line, "file:line"; None where the error came from none.
    """

    def __init__(self, reason: str, source: str | None = None) -> None:
        self.source = source
        super().__init__(reason if source is None else f"{reason}, at {source}")


class EagerGraph(FuncGraph):  # type: ignore[misc]  # TensorFlow is untyped
    """A graph in which functions mean what they mean when they are called eagerly.

    In a graph of `tf.compat.v1`, `==` of two tensors compares the Python objects; in the graph of a function
    it compares values. Tensors that were made outside become constants, and tables and variables are made in
    the graph itself instead of outside of it, so that a session can run it.
    """

    def __init__(self) -> None:
        super().__init__("input_analyzer")
        for name in self.get_all_collection_keys():  # what was made eagerly before leaves marks there
            self.clear_collection(name)

    def call(self, make: Callable[[], Any]) -> Any:
        """What a function returns that is called in this graph.

        Raises:
            NeedsEagerError: it raises in a graph, or does something that only an eager call does.
        """
        try:
            with self.as_default(), self._kept_inside(), tf.variable_creator_scope(_made_later):
                made = make()
                self._check_starts(made)
        except NeedsEagerError as error:
            raise NeedsEagerError(str(error), error.source or _users_line(error)) from error
        except Exception as error:
            said = textwrap.shorten(str(error).partition("\n")[0], _LONGEST, placeholder="...")
            raise NeedsEagerError(f"{type(error).__name__}: {said}", _users_line(error)) from error
        return made

    def capture(self, tensor: Any, name: Any = None, shape: Any = None) -> Any:
        """The tensor of this graph that stands for one from outside.

        Raises:
            NeedsEagerError: it is a variable, a table or a dataset, which no session has.
        """
        if not isinstance(tensor, tf.__internal__.EagerTensor):
            return super().capture(tensor, name=name, shape=shape)
        if tensor.dtype in (tf.resource, tf.variant):
            raise NeedsEagerError("it uses a variable, table or dataset that was made before it was called")
        with self.as_default():
            return tf.constant(tensor.numpy(), tensor.dtype)

    @contextmanager
    def _kept_inside(self) -> Iterator[None]:
        """Lets `tf.init_scope`, by which TensorFlow makes tables and variables, end in this graph.

        The graph of a function has no way to say so: TensorFlow leaves every one of them.
        """

        @contextmanager
        def scope() -> Iterator[None]:
            name = ops.get_default_graph().get_name_scope()
            # What is made there is told that it is not in a function, as in any graph that it ends in.
            before: bool = self.building_function
            self._building_function = False
            try:
                with ExitStack() as stack:
                    stack.enter_context(self.as_default())
                    stack.enter_context(ops.name_scope(f"{name}/" if name else name))
                    stack.enter_context(tf.control_dependencies(None))
                    yield
            finally:
                self._building_function = before

        leaving, public = ops.init_scope, tf.init_scope
        ops.init_scope = tf.init_scope = scope
        try:
            yield
        finally:
            ops.init_scope, tf.init_scope = leaving, public

    def _check_starts(self, made: Any) -> None:
        """Whether tables and variables have in a session what they have when the function returns."""
        if not isinstance(made, tf.data.Dataset):
            return
        first = [variable.initializer for variable in tf.compat.v1.global_variables()]
        first += self.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
        needed = _with_all_before([*first, tf.data.experimental.to_variant(made).op])
        for operation in self.get_operations():
            if _WRITES.match(operation.type) and operation.name not in needed:
                raise NeedsEagerError("it changes a variable or a table itself, before anything is read")
        if first:
            try:
                with tf.compat.v1.Session(graph=self) as session:
                    session.run(first)
            except tf.errors.OpError as error:
                said = "a variable or table that it makes needs another one to be made first"
                raise NeedsEagerError(f"{said} ({type(error).__name__})") from error


def _made_later(make: Callable[..., Any], **named: Any) -> Any:
    """A variable whose first value is a tensor: one of a function must not be, what returns one may."""
    value = named.get("initial_value")
    if isinstance(value, tf.Tensor):
        named["initial_value"] = lambda: value
    return make(**named)


def _with_all_before(operations: list[Any]) -> set[str]:
    waiting, seen = list(operations), set()
    while waiting:
        operation = waiting.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return seen


def _users_line(error: BaseException) -> str | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else None
