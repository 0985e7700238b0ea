"""The program of an analysis of MODULE:FUNCTION: import the function and export its input."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import reduce
from importlib.abc import MetaPathFinder
from pathlib import Path
from shlex import join
from typing import Any, cast

from cs_toolkit.errors import UsageError
from csrun.schedulers.tasks import worker_place, worker_variables
from csrun.tasks.environment import environment_variables
from input_analyzer.child import begin, keep_files_apart, refuse
from input_rules.batches import as_texts
from input_rules.errors import ComponentError, WrongTypeError
from input_rules.input_export import ORDER_VARIABLE, InputProgram, Shard, export_input
from input_rules.pipeline import Framework

# Functions of a module that are named if the requested one does not exist.
_MOST_NAMED = 10


def looks_like_function(word: str) -> bool:
    """Return True for MODULE:FUNCTION or FILE.py:FUNCTION, also with a static method CLASS.METHOD."""
    module, colon, function = word.rpartition(":")
    named = all(part.isidentifier() for part in function.split("."))
    return bool(module and colon and named and "=" not in module)


def main() -> None:
    """Run the process."""
    order_file = Path(os.environ[ORDER_VARIABLE])
    order, link = begin(order_file)  # from here on the analyzer can tell where this process hangs
    try:
        function, example = call_function(
            sys.argv[1], lambda: keep_files_apart(order), lambda doing: link.send(event="alive", doing=doing)
        )
        program = program_of(function, example)
    except Exception as error:
        refuse(order_file, error)
    export_input(program)


def call_function(
    word: str, prepare: Callable[[], None], say: Callable[[str], None]
) -> tuple[Callable[[], Any], Any]:
    """Call the function that a word names.


    Args:
        word: MODULE:FUNCTION or FILE.py:FUNCTION.
        prepare: Called as soon as TensorFlow is imported.
        say: Receives progress.

    Returns:
        The function and its result.

    Raises:
        UsageError: there is no such function, or it needs arguments.
        Exception: anything that it raises, unchanged.
    """
    with ExitStack() as stack:
        # The module, and the first call, may create datasets, tables and layers that later calls use, and may
        # read datasets themselves. So everything that they create is recorded.
        def start_recording() -> None:
            from input_analyzer.tf.eager_graph import record_operations

            prepare()
            stack.enter_context(record_operations())

        stack.enter_context(on_import("tensorflow", start_recording))
        function = load(word)
        check_arguments(word, function)
        say(f"calling {word}")
        # The environment of a copy is set when it starts; it may keep the result of its first call.
        with nullcontext() if "TF_CONFIG" in os.environ else _act_as_worker(Shard(1, 0)):
            return function, function()


def load(word: str) -> Callable[[], Any]:
    """Load the function that a word names.

    Raises:
        UsageError: there is no such module, file or function.
    """
    module_name, _, name = word.rpartition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = (
            _import_file(Path(module_name))
            if module_name.endswith(".py")
            else importlib.import_module(module_name)
        )
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UsageError(
            f"{word}: there is no module '{error.name}'; expected MODULE:FUNCTION with a module of the "
            "working directory or an installed one, or FILE.py:FUNCTION"
        ) from None
    function = reduce(lambda owner, part: getattr(owner, part, None), name.split("."), cast("Any", module))
    if not callable(function):
        public = {
            key: value for key, value in vars(module).items() if not key.startswith("_") and callable(value)
        }
        own = [
            key
            for key, value in public.items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        known = own or list(public)
        raise UsageError(
            f"{word}: {module_name} has no function '{name}'; expected one that returns a dataset; it has "
            f"{', '.join(known[:_MOST_NAMED]) or 'none'}{', ...' if len(known) > _MOST_NAMED else ''}"
        )
    return cast("Callable[[], Any]", function)


def check_arguments(word: str, function: Callable[..., Any]) -> None:
    """Check that a function can be called without arguments.

    Raises:
        UsageError: it needs arguments.
    """
    try:
        inspect.signature(function).bind()
    except ValueError:  # a C function without a signature: calling it will show
        return
    except TypeError as error:
        raise UsageError(
            f"{word}: the function needs arguments ({error}); expected one without: write one that calls it "
            "with them"
        ) from None


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; expected FILE.py:FUNCTION with a file that exists")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise UsageError(
            f"{path}: {error}: a file of a package cannot be loaded by itself; expected "
            f"{path.resolve().parent.name}.{path.stem}:FUNCTION, from the folder above that of the package"
        ) from None
    return module


def program_of(function: Callable[[], Any], example: Any) -> InputProgram:
    """Make the program of a function; its result determines the framework.

    Raises:
        WrongTypeError: the result is no dataset.
    """
    framework = framework_of(example)
    finished_loaders: dict[Shard, Any] = {}  # loaders that have reached the end of an epoch
    names: list[str] = []  # names of the arrays; empty before the first batch of a loader

    def build(shard: Shard) -> Any:
        with _act_as_worker(shard):
            return function()

    def batches(shard: Shard) -> Iterator[tuple[Any, ...]]:
        if framework == "torch":
            return _read_epoch(build, finished_loaders, shard, names)
        return tensorflow_batches(build(shard), names)

    size = None
    if framework == "torch":
        from input_rules.torch.loader import batch_size_of

        size = batch_size_of(example)
    return InputProgram(
        framework, function, build, batches, lambda: names, size, eager=True, role=_act_as_worker
    )


def _act_as_worker(shard: Shard) -> AbstractContextManager[None]:
    """Set the variables of a csrun_wse worker, such as TF_CONFIG, by which functions shard."""
    variables = worker_variables(os.environ, shard.count, shard.index)
    if shard.count > 1:
        rank, tasks = worker_place(shard.count, shard.index)
        variables["CSRUN_RANK"], variables["CSRUN_NUM_TASKS"] = str(rank), str(tasks)
        variables["CSRUN_ROLE"], variables["CSRUN_TASK_INDEX"] = "worker", str(shard.index)
    return environment_variables(variables)


def framework_of(made: Any) -> Framework:
    """Return the framework of a dataset without importing a framework that the program has not imported.

    Raises:
        WrongTypeError: it is no dataset.
    """
    torch, tensorflow = sys.modules.get("torch.utils.data"), sys.modules.get("tensorflow")
    if torch is not None and isinstance(made, torch.DataLoader):
        return "torch"
    if tensorflow is not None and isinstance(made, tensorflow.data.Dataset):
        return "tensorflow"
    raise WrongTypeError(made)


def tensorflow_batches(dataset: Any, names: list[str] | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield the elements of a Dataset as arrays.

    Args:
        dataset: The Dataset.
        names: Is filled with the names of the arrays.

    Raises:
        ComponentError: they hold something that cannot be streamed.
    """
    import tensorflow as tf

    from input_rules.tf.pipeline import name_specs

    leaves = tf.nest.flatten(dataset.element_spec)
    known = [name for name, _ in name_specs(dataset.element_spec)]
    if len(known) != len(leaves):  # there are leaves of classes that only tf.nest knows
        known = [f"component {index}" for index in range(len(leaves))]
    if names is not None:
        names[:] = known
    for name, spec in zip(known, leaves, strict=True):
        if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.resource, tf.variant):
            dense = isinstance(spec, tf.TensorSpec)
            got = f"a tensor of {spec.dtype.name}" if dense else type(spec).__name__.removesuffix("Spec")
            raise ComponentError(name, got, "convert it, or leave it out, in the input function")
    for element in dataset:
        arrays = (leaf.numpy() for leaf in tf.nest.flatten(element))
        yield tuple(as_texts(array) or array for array in arrays)


def _read_epoch(
    build: Callable[[Shard], Any], finished_loaders: dict[Shard, Any], shard: Shard, names: list[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield an epoch of a DataLoader, which is reused as in training, so that its workers stay alive."""
    loader = known = finished_loaders.pop(shard, None)
    if known is None:
        loader = build(shard)
    made = 0
    for batch in torch_batches(loader, names):
        made += 1
        yield batch
    if known is not None and not made:  # a loader that can be read only once
        yield from _read_epoch(build, {}, shard, names)
    else:
        finished_loaders[shard] = loader


def torch_batches(loader: Any, names: list[str] | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield the batches of a DataLoader as arrays; single records become batches of 1.

    Args:
        loader: The DataLoader.
        names: Is filled with the names of the arrays.

    Raises:
        ComponentError: a batch holds something that cannot be streamed.
    """
    from input_rules.torch.batch_parts import flatten_batch
    from input_rules.torch.loader import is_batch

    for batch in loader:
        found = flatten_batch(batch)
        if names is not None:
            names[:] = found
        leaves = tuple(found.values())
        yield leaves if is_batch(loader, leaves) else tuple(leaf[None] for leaf in leaves)


@contextmanager
def on_import(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Run an action right after the first import of a module, or immediately if it is already imported."""
    if name in sys.modules:
        action()
        yield
        return
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds modules with the other finders."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the spec of the module with a loader that runs the action once."""
        if name != self._name:
            return None
        self._name = ""  # find_spec below calls this finder again
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_act(module: Any) -> None:
                load(module)
                self._action()

            spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


def refuse_no_program(words: Sequence[str], path: str) -> None:
    """Check that a command is a program, and not a Python file or a function with arguments.

    Args:
        words: The command.
        path: Folders of programs, as in PATH.

    Raises:
        UsageError: it is no program.
    """
    word, *others = words
    if shutil.which(word, path=path):
        return
    if word.endswith(".py") and Path(word).is_file():
        raise UsageError(
            f"{word} is a file and no program; expected 'python {word}' for a program that trains or "
            f"compiles, or '{word}:FUNCTION' for a function in it that returns a dataset"
        )
    if others and looks_like_function(word):
        raise UsageError(
            f"{word} names a function and is followed by {join(others)!r}; expected the function as the "
            f"last argument and flags before it: cs_input_analyzer {join([*others, word])}"
        )


if __name__ == "__main__":
    main()
