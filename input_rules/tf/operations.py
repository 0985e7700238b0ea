"""Dataset operations of a graph: kinds, inputs, constants, functions, and the user's lines that made them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2
from tensorflow.python.framework import op_def_registry

from cs_toolkit.source_files import is_user_file
from input_rules.formatting import display_path
from input_rules.pipeline import Value
from input_rules.tf.batch_forms import have_batch_form

# Operations that make variants of other kinds: ragged, sparse and optional values, lists and maps of tensors.
_VALUES = re.compile("Ragged|Serialize|TensorList|EmptyTensor|TensorMap|Optional")


def kind_of(operation: str) -> str:
    """Return the name of an operation without its version."""
    return re.sub(r"V\d+$", "", operation)


def constant_input(node: Any, name: str) -> int | None:
    """Return an integer argument of an operation; None if it is computed or does not exist."""
    lists = find_inputs(node)
    value = tf.get_static_value(lists[name][0]) if name in lists else None
    return None if value is None else int(value)


def dataset_inputs(node: Any) -> list[Any]:
    """Return the operations of the datasets that a dataset reads, in the order of its arguments."""
    return [tensor.op for tensor in node.inputs if is_dataset(tensor)]


def is_dataset(tensor: Any) -> bool:
    """Return True if a tensor is a dataset and not a variant of another kind."""
    return tensor.dtype == tf.variant and not _VALUES.match(tensor.op.type)


def topological_order(last: Any) -> Iterator[Any]:
    """Yield all dataset operations that an operation depends on, and itself, inputs first."""
    seen: set[str] = set()
    stack: list[tuple[Any, bool]] = [(last, False)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            yield node
        elif node.name not in seen:
            seen.add(node.name)
            stack.append((node, True))
            stack.extend((other, False) for other in reversed(dataset_inputs(node)))


def find_inputs(node: Any) -> dict[str, list[Any]]:
    """Return the inputs of an operation by their names in its definition; each is a list."""
    tensors = list(node.inputs)
    result = {}
    for argument in node.op_def.input_arg:
        count = 1
        if argument.number_attr:
            count = node.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(node.get_attr(argument.type_list_attr))
        result[argument.name], tensors = tensors[:count], tensors[count:]
    return result


def allows_any_order(node: Any) -> bool:
    """Return True if the options of an operation allow elements in any order."""
    options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
    return bool(options.WhichOneof("optional_deterministic")) and not options.deterministic


PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"})
# Matches kinds of operations that read files.
FILES = re.compile(r"File|Record|TextLine|FixedLength|Csv|CSV|SQL|LMDB|Reader|Load|Restore|Snapshot")
# Operations that only pass on, name or reshape their input.
_FREE = frozenset(
    {
        *("Identity", "IdentityN", "NoOp", "Const", "Placeholder", "Reshape", "ExpandDims", "Squeeze"),
        *("EnsureShape", "Shape", "Pack", "Unpack", "StridedSlice"),
    }
)

# Operations that call their function once for each dataset, which they then read in their own threads.
_READING_KINDS = ("FlatMap", "Interleave", "ParallelInterleave", "LegacyParallelInterleave")
_CALLING_KINDS = re.compile(r"(Parallel)?(Map|Filter|Scan|TakeWhile|GroupBy)\w*Dataset")


def function_traits(node: Any, functions: Mapping[str, Any]) -> dict[str, Value]:
    """Return the properties of the functions of a dataset operation; empty if it has none.

    Args:
        node: The operation.
        functions: The function library of the graph: FunctionDef by name.

    Returns:
        `function` (name of the Python function), `python` (calls Python for every element), `random` (draws
        numbers that depend on how often it was called), `stateful` (TensorFlow preserves the order of its
        calls), `pooled` (functions run in TensorFlow's thread pool, not only datasets are read), `free`
        (computes nothing), `batch_form` (all of its operations but Python can work on a batch),
        `parses_single` (parses a tf.train.Example), `reads` (kind of the files that it reads), `opens` (reads
        files of any kind).
    """
    names = [name for value in node.node_def.attr.values() for name in _function_names(value)]
    if not names:
        return {}
    kinds = set(_operations(names, functions))
    readers = sorted(kind_of(kind) for kind in kinds if re.match(r"(TFRecord|TextLine|FixedLength)", kind))
    # The name of a function is like `__inference_Dataset_map_convert_12`.
    match = re.match(r"__inference_Dataset_[a-z]+(?:_[a-z]+)*?_(.+?)_\d+$", names[0])
    # The random state may be a variable, as for Keras layers and `tf.random.Generator`.
    draws_from_variable = any(_GENERATING.match(kind) for kind in kinds) or (
        bool(_ASSIGNING & kinds) and any(_BY_KEY.match(kind) for kind in kinds)
    )
    found: dict[str, Value] = {
        "function": match[1] if match and match[1].isidentifier() else None,
        "python": bool(kinds & PYTHON),
        "random": draws_from_variable or any(is_random(kind) for kind in kinds),
        "pooled": not node.type.startswith(_READING_KINDS)
        or any(_CALLING_KINDS.match(kind) for kind in kinds),
        "stateful": any(is_stateful(kind) for kind in kinds),
        "free": kinds <= _FREE,
        # Whether the Python function that it calls takes a batch is not known from the graph.
        "batch_form": have_batch_form(kinds - PYTHON),
        "parses_single": "ParseSingleExample" in kinds or "ParseExampleV2" in kinds,
    }
    if readers:
        found["reads"] = readers[0]
    if any(FILES.search(kind) for kind in kinds):
        found["opens"] = True
    return found


def find_functions(node: Any, functions: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the functions of a dataset operation, and those that they call, from the function library."""
    yield from _transitive_functions(
        [name for value in node.node_def.attr.values() for name in _function_names(value)], functions
    )


def function_library(last: Any) -> dict[str, Any]:
    """Return the functions that a dataset uses, FunctionDef by name.

    Its graph may have others, of datasets that the analyzer has added, for example to count elements.
    """
    whole = {f.signature.name: f for f in last.graph.as_graph_def().library.function}
    found: dict[str, Any] = {}
    waiting, seen = [last], {last.name}
    while waiting:
        node = waiting.pop()
        found |= {one.signature.name: one for one in find_functions(node, whole)}
        fresh = [tensor.op for tensor in node.inputs if tensor.op.name not in seen]
        seen |= {other.name for other in fresh}
        waiting += fresh
    return found


def calls_python(graph: Any) -> bool:
    """Return True if a dataset of a graph calls Python for its records."""
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    return any(node.op in PYTHON for nodes in (definition.node, *functions) for node in nodes)


def has_control_flow(node: Any) -> bool:
    """Return True if a function of a dataset operation has a loop or a branch."""
    names = [name for value in node.node_def.attr.values() for name in _function_names(value)]
    functions = _LIBRARIES.get(node.graph, {})
    if not functions.keys() >= set(names):
        # Serialized only if needed: the graph's data, which may be large, is copied with it.
        functions = {f.signature.name: f for f in node.graph.as_graph_def().library.function}
        _LIBRARIES[node.graph] = functions
    return any(_CONTROL_FLOW.match(kind) for kind in _operations(names, functions))


_LIBRARIES: WeakKeyDictionary[Any, Mapping[str, Any]] = WeakKeyDictionary()
_CONTROL_FLOW = re.compile(r"(Stateless)?(If|While|Case)$|(Ref)?(Switch|Merge|Enter|Exit)$")


def _function_names(value: Any) -> Iterator[str]:
    if value.HasField("func"):
        yield value.func.name
    for function in value.list.func:
        yield function.name


def _operations(names: list[str], functions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of all operations of some functions and of those that they call."""
    for function in _transitive_functions(names, functions):
        for node in function.node_def:
            if node.op not in functions and "PartitionedCall" not in node.op:
                yield node.op


def _transitive_functions(names: list[str], functions: Mapping[str, Any]) -> Iterator[Any]:
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        yield functions[name]
        for node in functions[name].node_def:
            waiting += [inner for value in node.attr.values() for inner in _function_names(value)]
            if node.op in functions:
                waiting.append(node.op)


@cache
def is_random(kind: str) -> bool:
    """Return True if an operation draws random numbers from a state, and not as a function of a key."""
    definition = op_def_registry.get(kind)
    if definition is None or not definition.is_stateful or kind.endswith("Dataset"):
        return False
    names = {attribute.name for attribute in definition.attr}
    return {"seed", "seed2"} <= names


_GENERATING = re.compile(
    r"RngReadAndSkip|RngSkip|NonDeterministicInts|Stateful(Uniform|Standard|Truncated|Random)"
)
_BY_KEY = re.compile(r"Stateless(Random|Truncated|Parameterized|Multinomial|SampleDistorted|Shuffle)")
_ASSIGNING = frozenset({"AssignVariableOp", "AssignAddVariableOp"})


@cache
def is_stateful(kind: str) -> bool:
    """Return True if TensorFlow treats an operation as stateful before it makes calls parallel.

    Assertions are allowed, and branches and loops are judged by their functions
    (core/grappler/optimizers/data/function_utils.cc).
    """
    if kind in _JUDGED_BY_CONTENT:
        return False
    definition = op_def_registry.get(kind)
    return definition is None or definition.is_stateful


_JUDGED_BY_CONTENT = frozenset({"Assert", "If", "While", "Case"})


# Functions that TensorFlow wraps others in.
_DECORATORS = frozenset({"new_func", "wrapper", "tf_method_wrapper", "error_handler"})

# A traceback: `(file, line, function)` of each call, outermost first.
Frames = tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Origin:
    """Where an operation comes from.

    Attributes:
        source: The user's line, `file:line`; None if no user's code is involved.
        function: The library function or class that this line called; None if the operation was made there.
        frames: The whole traceback, `(file, line, function)`, outermost first.
        call: Equal for operations that the same call on the same line made.
    """

    source: str | None
    function: str | None
    frames: Frames
    call: tuple[Any, ...]


_FRAMES: WeakKeyDictionary[Any, dict[str, Frames]] = WeakKeyDictionary()


def set_origin(operation: Any, frames: Frames) -> None:
    """Set the traceback of an operation that is the copy of another one."""
    _FRAMES.setdefault(operation.graph, {})[operation.name] = frames


def find_origin(operation: Any) -> Origin:
    """Read the traceback of an operation of a graph."""
    frames = _FRAMES.get(operation.graph, {}).get(operation.name)
    if frames is None:
        frames = tuple((frame.filename, frame.lineno, frame.name) for frame in operation.traceback)
    return _origin_of_frames(frames, operation.name)


def source_of(frames: Frames) -> str | None:
    """Return the user's line in a traceback, `file:line`; None if no user's code is involved."""
    return _origin_of_frames(frames, "").source


def _origin_of_frames(frames: Frames, name: str) -> Origin:
    own = [index for index, frame in enumerate(frames) if is_user_file(frame[0])]
    if not own:
        return Origin(None, None, frames, (name,))
    last = own[-1]
    called = next((frame for frame in frames[last + 1 :] if frame[2] not in _DECORATORS), None)
    path, line, _ = frames[last]
    function = called[2] if called else None
    if called and function == "__init__":  # named by its class
        around = [(end - first, one) for first, end, one in _classes(called[0]) if first <= called[1] <= end]
        function = re.sub(r"V\d+$", "", min(around)[1]) if around else function
    return Origin(
        f"{display_path(path)}:{line}",
        function,
        frames,
        (frames[: last + 1], called[0] if called else None, called[2] if called else name),
    )


@cache
def _classes(path: str) -> tuple[tuple[int, int, str], ...]:
    """Return first line, last line and name of all classes of a file; nothing if it cannot be read."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return tuple((node.lineno, node.end_lineno or node.lineno, node.name) for node in found)
