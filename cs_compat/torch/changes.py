"""Changes to libraries and to the Model Zoo where their versions of today do not fit each other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from importlib import import_module, metadata
from types import CodeType, EllipsisType, ModuleType
from typing import Any, get_args

from cs_compat.torch.placeholders import add_retired_names


def _configurations(module: ModuleType) -> None:
    """Let the default of an annotation win over `...` in fields of generated configurations.

    Pydantic 2.8, for which the Model Zoo was written, did so. Later ones take `...` for "required", and every
    configuration lacks the arguments that the Trainer fills in.
    """
    make: Callable[..., Any] = vars(module)["create_model"]

    @wraps(make)
    def create_model(*args: Any, **fields: Any) -> Any:
        return make(*args, **{name: _with_default(field) for name, field in fields.items()})

    vars(module)["create_model"] = create_model
    # Later versions warn at each value that a configuration holds as an object: some 400 lines in the log of
    # a run, before its first step.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")


def _with_default(field: Any) -> Any:
    if not isinstance(field, tuple) or len(field) != 2 or not isinstance(field[1], EllipsisType):
        return field
    from pydantic.fields import FieldInfo

    for extra in get_args(field[0])[1:]:
        if isinstance(extra, FieldInfo) and not extra.is_required():
            return field[0], extra.get_default()
    return field


def _validation(module: ModuleType) -> None:
    """Accept how serializers call their handlers, and how a copy of a `TreeSpec` is made.

    They pass their information where pydantic expects a key of an element: version 2.8 took any object, later
    ones take an integer or a string. The fields of a `TreeSpec` are no longer what its constructor takes.
    """
    vars(module)["dataclasses"] = _dataclasses()
    make: Callable[..., Any] = vars(module)["WrapSerializer"]

    def wrap_serializer(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def serialize(value: Any, handler: Callable[..., Any], info: Any) -> Any:
            return function(value, lambda inner, *_: handler(inner), info)

        return make(serialize, *args, **kwargs)

    vars(module)["WrapSerializer"] = wrap_serializer


def _dataclasses() -> ModuleType:
    """Return a copy of `dataclasses` whose `replace` knows the constructor of a `TreeSpec`."""
    import dataclasses

    from torch.utils._pytree import TreeSpec

    def replace(instance: Any, **changes: Any) -> Any:
        if type(instance) is not TreeSpec:
            return dataclasses.replace(instance, **changes)
        given = {
            "type": instance.type,
            "context": instance.context,
            "children_specs": instance.children(),
        }
        return TreeSpec(**{**given, **changes})

    changed = ModuleType(dataclasses.__name__)
    vars(changed).update({**vars(dataclasses), "replace": replace})
    return changed


@contextmanager
def _without_missing_operators(module: ModuleType) -> Iterator[None]:
    """Leave out the shapes of operators that torchvision's library has not registered.

    The library of the wheel on PyPI needs CUDA; with the CPU build of PyTorch it is not loaded. Transforms
    and models work without it, but registering the shapes of its operators ends the import.
    """
    if vars(import_module("torchvision.extension"))["_has_ops"]():
        yield
        return
    library: Any = import_module("torch.library")
    register = library.register_fake

    def register_fake(name: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(name, str) and name.startswith("torchvision::"):
            return lambda function: function
        return register(name, *args, **kwargs)

    library.register_fake = register_fake
    try:
        yield
    finally:
        library.register_fake = register


class _EmptyList:
    """Equals empty lists and nothing else; arrays leave the comparison to it."""

    __array_ufunc__ = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list) and not other


@contextmanager
def _comparing_arrays_with_lists(module: ModuleType) -> Iterator[None]:
    """Import a module in which no array equals `[]`.

    NumPy said so until 1.25, and raises an error since where the shapes do not fit: preprocessing of data
    compares each sample with `[]`, and a sample is an array or an empty list.
    """
    import ast

    class Literals(ast.NodeTransformer):
        def visit_Compare(self, node: ast.Compare) -> ast.Compare:
            self.generic_visit(node)
            if isinstance(node.ops[0], ast.Eq | ast.NotEq):
                match node.comparators:
                    case [ast.List(elts=[])]:
                        node.comparators = [ast.Name("__empty_list__", ast.Load())]
            return node

    loader: Any = module.__loader__

    def get_code(name: str) -> CodeType:
        path = loader.get_filename(name)
        tree = ast.fix_missing_locations(Literals().visit(ast.parse(loader.get_data(path), path)))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    vars(module)["__empty_list__"] = _EmptyList()
    # The loader's own one would keep the changed code next to the source, for interpreters of others too.
    loader.get_code = get_code
    try:
        yield
    finally:
        del loader.get_code


class _CurrentRates:
    """The rates of an optimizer's groups, for a schedule that has not written any itself."""

    def __get__(self, schedule: Any, owner: type) -> Any:
        if schedule is None:
            return self
        return [group["lr"] for group in schedule.optimizer.param_groups]


def _schedules(module: ModuleType) -> None:
    """Let every schedule of torch have rates that can be read.

    `SequentialLR` reads those of its first schedule when it is made, since torch 1.12. Programs of the time
    before derive schedules whose `step` computes none, because the CS system computes them.
    """
    vars(module)["LRScheduler"]._last_lr = _CurrentRates()


def _hub(module: ModuleType) -> None:
    """Let releases up to 1.6 import classes that version 1 of the hub has removed."""
    if not vars(module)["__version__"].startswith("0."):  # these load a class when asked for it
        add_retired_names(module, ("HfFolder", "Repository"), "huggingface_hub<1")


def _versions(module: ModuleType) -> None:
    """Let releases up to 1.6 import `importlib_metadata`, which transformers had from there."""
    vars(module).setdefault("importlib_metadata", metadata)


def _requirements(module: ModuleType) -> None:
    """Warn where release 1.6 asks for tokenizers of 2021: later ones do, and today's Python has no others."""
    require: Callable[..., None] = vars(module)["require_version_core"]

    @wraps(require)
    def require_version_core(*args: Any) -> None:
        try:
            require(*args)
        except ImportError as error:
            warnings.warn(str(error).partition("\n")[0], stacklevel=2)

    vars(module)["require_version_core"] = require_version_core


CHANGES: Mapping[str, Callable[[ModuleType], None]] = {
    "cerebras.modelzoo.config.utils": _configurations,
    "cerebras.modelzoo.trainer.validate": _validation,
    "huggingface_hub": _hub,
    "torch.optim.lr_scheduler": _schedules,
    "transformers.utils.versions": _versions,
    "cerebras_reference_implementations.bert.pytorch.huggingface_common.utils.versions": _requirements,
    "modelzoo.transformers.pytorch.huggingface_common.utils.versions": _requirements,
}
"""Function by the name of the module after whose import it runs."""

AROUND: Mapping[str, Callable[[ModuleType], AbstractContextManager[None]]] = {
    "torchvision._meta_registrations": _without_missing_operators,
    **dict.fromkeys(
        (
            "cerebras.modelzoo.data_preparation.data_preprocessing.*",
            "cerebras.modelzoo.data_preparation.nlp.chunk_data_processing.*",
            "cerebras.modelzoo.data_preparation.nlp.hdf5_preprocessing.*",
            "modelzoo.transformers.data_processing.scripts.hdf5_preprocessing.*",
        ),
        _comparing_arrays_with_lists,
    ),
}
"""Context by the name of the module that is imported in it, or by its package with `.*`."""
