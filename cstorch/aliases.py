"""Make the modules of `cstorch` importable under the names of the original packages."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

# Modules that programs import by path, with all below them; `import cstorch` imports them all.
_PUBLIC = (
    "amp",
    "backends",
    "cirh",
    "core",
    "distributed",
    "metrics",
    "nn",
    "optim",
    "profiler",
    "saver",
    "sparse",
    "storage",
    "utils",
)

# Paths of the original below its package, and the modules here with the same definitions.
_MOVED = {
    "backend": "cstorch.backends",
    "backend.ltc_backend": "cstorch.hooks",
    "backends.ltc_backend": "cstorch.hooks",
    "core.compile": "cstorch.hooks",
    "distributed.cache": "cstorch.distributed.workers",
    "distributed.worker_state": "cstorch.distributed.workers",
    "experimental.listener": "cstorch.hooks",
    "lib": "cstorch.core.annotation",
    "mesh": "cstorch.core.annotation",
    "saver.pt_h5_saver": "cstorch.saver",
    "storage.constants": "cstorch.storage",
    "storage.serializers": "cstorch.storage",
    "utils.call_once": "cstorch.utils.helpers",
    "utils.data.data_executor": "cstorch.loop.loaders",
    "utils.data.dataloader": "cstorch.utils.data",
    "utils.data.sampler": "cstorch.input.datasets",
    "utils.data.utils": "cstorch.utils.data",
    "utils.filters": "cstorch.utils.helpers",
    "utils.kernel": "cstorch.core.annotation",
    "utils.nest": "cstorch.utils.helpers",
    "utils.num_kv_groups": "cstorch.core.annotation",
    "utils.run_phases": "cstorch.utils.profiler",
    "utils.tracker": "cstorch.loop.rates",
    "utils.utils": "cstorch.utils.helpers",
    "workflow.python.cs_perf_analyzer": "cstorch.utils.profiler",
}

# Modules here, and modules of the original whose definitions they have.
_DEFINITIONS = {
    "cstorch": """core.device core.name_scope core.tensor decomp.registry storage.load storage.save
        utils.constant utils.device_annotation utils.pol utils.step_closures utils.tensor""",
    "cstorch.amp": "amp.amp amp.autocast amp.conditional_update amp.grad_scaler amp.optimizer_step",
    "cstorch.backends": "backend.base_backend",
    "cstorch.experimental": "experimental.compression",
    "cstorch.metrics": """metrics.accuracy metrics.auc metrics.dice_coefficient metrics.fbeta_score
        metrics.mean metrics.mean_iou metrics.mean_per_class_accuracy metrics.perplexity
        metrics.precision_at_k metrics.recall_at_k""",
    "cstorch.nn": "nn.modules nn.scope nn.selective_updates",
    "cstorch.optim": """optim.ASGD optim.Adadelta optim.Adafactor optim.Adagrad optim.AdamBase optim.Adamax
        optim.Lamb optim.Lion optim.Muon optim.NAdam optim.RAdam optim.RMSprop optim.Rprop optim.SGD""",
    "cstorch.profiler": "profiler.profiler",
    "cstorch.sparse": "sparse.base sparse.gmp sparse.group sparse.rigl sparse.set sparse.static",
    "cstorch.utils.data": "utils.data.dataset",
    "cstorch.utils.tensorboard": "utils.tensorboard.writer",
}


def public_modules(name: str) -> None:
    """Make the modules of `cstorch` importable below another name too.

    `import NAME.optim.lr_scheduler` then finds the very module `cstorch.optim.lr_scheduler`, and
    `import NAME.utils.tracker` the module `cstorch.loop.rates`.
    """
    for path, module in list(sys.modules.items()):
        root, _, inner = path.partition(".")
        if root == "cstorch" and inner.split(".")[0] in _PUBLIC:
            sys.modules[f"{name}.{inner}"] = module
    for path, target in _MOVED.items():
        sys.modules[f"{name}.{path}"] = import_module(target)
        # Otherwise a module below it that is imported by both names would exist twice.
        for below, module in list(sys.modules.items()):
            if below.startswith(f"{target}."):
                sys.modules[f"{name}.{path}{below.removeprefix(target)}"] = module
        parent = path.rpartition(".")[0]
        while parent and f"{name}.{parent}" not in sys.modules:  # packages of the original only
            package = sys.modules[f"{name}.{parent}"] = ModuleType(f"{name}.{parent}")
            package.__path__ = []
            parent = parent.rpartition(".")[0]
        _set_attributes(name, path)
    for target, paths in _DEFINITIONS.items():
        for path in paths.split():
            sys.modules.setdefault(f"{name}.{path}", import_module(target))


def _set_attributes(name: str, path: str) -> None:
    """Set a module and its packages as attributes of their parents, as an import does."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        parent = sys.modules[".".join([name, *parts[: length - 1]])]
        if not hasattr(parent, parts[length - 1]):  # `backend` is a function there
            setattr(parent, parts[length - 1], sys.modules[".".join([name, *parts[:length]])])


def session_modules(name: str) -> None:
    """Make the session API, and every module below it, importable by another name too."""
    alias(name, "cstorch.v1.session")
    sys.modules[f"{name}.saver.pt_h5_saver"] = sys.modules["cstorch.saver"]


def alias(name: str, package: str, enclosing: tuple[str, ...] = ()) -> None:
    """Make a package, and every module below it, importable by another name too.

    Called by the module of that name, which is replaced. A module is the same object under both names, so
    that changes to one are visible in the other.

    Args:
        name: `__name__` of the caller, or the name of a further module below it.
        package: Name of the existing package.
        enclosing: Packages that `name` is in already: modules refer to each other in circles.
    """
    root = sys.modules[name] = import_module(package)
    for found in walk_packages(getattr(root, "__path__", ()), f"{package}."):
        sys.modules[name + found.name.removeprefix(package)] = import_module(found.name)
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:  # `import a.b.c as d` reads attributes
        setattr(sys.modules[parent], own, root)
    top = package.partition(".")[0]
    enclosing = (*enclosing, package)
    for attribute, value in list(vars(root).items()):  # sibling packages that the root imports
        other = isinstance(value, ModuleType) and value.__name__.startswith(f"{top}.")
        if other and not f"{value.__name__}.".startswith(tuple(f"{known}." for known in enclosing)):
            alias(f"{name}.{attribute}", value.__name__, enclosing)
