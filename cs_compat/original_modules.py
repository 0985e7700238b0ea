"""Modules of the original stack that programs import inside the launchers: a table, and the finder for it.

A module of the table has no file. It consists of imports from the toolkit, which are in the table as source
text: tracebacks, `inspect` and `python -m` show and run that text. The place of these modules is the folder
`cs_compat/modules`, which the wrappers put into the import path. So they are searched in the order of
`sys.path`, and `pkgutil` lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pkgutil import extend_path
from types import CodeType, ModuleType
from typing import Any

_MESSAGES = "Messages of the original stack."
_DEBUG_MESSAGES = "from cs_compat.appliance.messages import DebugArgs"

_ANYWHERE: Mapping[str, tuple[str, str]] = {
    "cerebras": (
        "Names of the original stack, for programs written for it. Other packages share this one.",
        "",
    ),
    "cerebras.appliance": ("", "import cerebras_appliance as same"),
    "cerebras.framework": ("Front ends.", ""),
    "cerebras.framework.torch": (
        "The session API.",
        "from cstorch.aliases import session_modules\nsession_modules(__name__)",
    ),
    "cerebras.pb": (_MESSAGES, ""),
    "cerebras.pb.client": (_MESSAGES, ""),
    "cerebras.pb.client.common_config_pb2": (
        "Debug arguments of the appliance of release 1.6.",
        _DEBUG_MESSAGES,
    ),
    "cerebras.pb.common": (_MESSAGES, ""),
    "cerebras.pb.common.cerebras_type_pb2": (
        "Number formats.",
        "from cs_compat.appliance.messages import T_CB16, T_F16",
    ),
    "cerebras.pb.common.tri_state_pb2": (
        "Switches that can be left open.",
        "from cs_compat.appliance.messages import TS_DISABLED, TS_ENABLED",
    ),
    "cerebras.pb.stack": (_MESSAGES, ""),
    "cerebras.pb.stack.autogen_pb2": (
        "When kernels are generated instead of matched.",
        "from cs_compat.appliance.messages import AP_DISABLED, AP_ENABLED",
    ),
    "cerebras.pb.stack.full_pb2": (
        "Options of the compiler's stack.",
        "from cs_compat.appliance.messages import FullConfig",
    ),
    "cerebras.pb.tf": (_MESSAGES, ""),
    "cerebras.pb.tf.csconfig_pb2": (
        "Options of the CS system.",
        "from cs_compat.appliance.messages import CSConfig",
    ),
    "cerebras.pb.workflow": (_MESSAGES, ""),
    "cerebras.pb.workflow.appliance": (_MESSAGES, ""),
    "cerebras.pb.workflow.appliance.common": (_MESSAGES, ""),
    "cerebras.pb.workflow.appliance.common.common_config_pb2": (
        "Debug arguments and execution modes of the appliance.",
        f"{_DEBUG_MESSAGES}, ExecutionStrategy",
    ),
    "cerebras.pytorch": (
        "`cstorch` under the name that programs of later releases 2 import.",
        """from cstorch import *
from cstorch import __all__
from cstorch.aliases import alias, public_modules
public_modules(__name__)
alias(f"{__name__}.experimental", "cerebras_pytorch.experimental")
public_modules(f"{__name__}.experimental")""",
    ),
    "cerebras.tf": ("TensorFlow programs.", ""),
    "cerebras.tf.cs_estimator": (
        "The estimator, under its original name and with its original order of arguments.",
        "from cs_compat.tensorflow.estimators import CerebrasEstimator",
    ),
    "cerebras.tf.cs_estimator_spec": ("The result of a `model_fn`.", "from estimator import CSEstimatorSpec"),
    "cerebras.tf.cs_model_to_estimator": (
        "Keras models as estimators.",
        "from cs_compat.tensorflow.estimators import KerasModelToCerebrasEstimator, KerasModelToModelFn",
    ),
    "cerebras.tf.cs_slurm_cluster_resolver": (
        "The task of the job that this process is.",
        "from cs_compat.tensorflow.helpers import CSSlurmClusterResolver",
    ),
    "cerebras.tf.host_call": (
        "Metrics that are computed on the host.",
        "from estimator.spec import host_call_to_eval_metric_ops, validate_host_call",
    ),
    "cerebras.tf.model_fusion": (
        "Fusion of several models into one program.",
        """from estimator.config import MULTI_MODEL_STACK_KEY
from estimator.model_fusion import ModelInfo, MultiModelFusion""",
    ),
    "cerebras.tf.run_config": ("The configuration of a run.", "from estimator import CSRunConfig"),
    "cerebras.tf.summary": (
        "Enables and disables the summaries of a model.",
        "from cs_compat.tensorflow.helpers import cs1_disable_summaries, cs1_enable_summaries",
    ),
    "cerebras.tf.tf_helper": (
        "Small helpers of model code.",
        "from cs_compat.tensorflow.helpers import GetWeights, boundary_cast, summarize_tensor, summary_layer",
    ),
    "cerebras.tf.utils": (
        "Helpers of run scripts.",
        "from cs_compat.tensorflow.estimators import prep_orchestrator",
    ),
    "cerebras.workflow": ("Tools around a run.", ""),
    "cerebras.workflow.python": ("Tools around a run.", ""),
    "cerebras.workflow.python.cs_perf_analyzer": (
        "The phases of a run.",
        "from cstorch.utils.profiler import AssessBottlenecks, locate_csperf_log",
    ),
    "cerebras_appliance": (
        "The original's appliance: errors, logs, debug arguments and storage.",
        """from cs_compat.appliance.log import logger
from cs_runtime.options import DEFAULT_COMPILE_DIR""",
    ),
    "cerebras_appliance.CSConfig": (
        "The configuration of the original's appliance.",
        """from cs_compat.appliance.configuration import CSConfig
from cs_runtime.options import ORIGINAL_ADDRESS""",
    ),
    "cerebras_appliance.appliance_manager": (
        "Groups of tensors that programs of releases 1.7 to 1.9 change on their way to the system.",
        "from cs_compat.appliance.cluster import TensorGroup, TensorGrouper, TensorSendPayload",
    ),
    "cerebras_appliance.cluster": ("The original's cluster.", ""),
    "cerebras_appliance.cluster.client": (
        "Clients of servers of the original's cluster.",
        "from cs_compat.appliance.cluster import TelemetryClient",
    ),
    "cerebras_appliance.cluster_client": (
        "Folders for the servers of the original's cluster.",
        "from cs_compat.appliance.cluster import VolumeMount",
    ),
    "cerebras_appliance.cs_run_config": (
        "The run configuration of TensorFlow programs of the appliance generation.",
        "from cs_compat.appliance.configuration import CSRunConfig",
    ),
    "cerebras_appliance.environment": (
        "The environment of the original's servers; here, that of the program.",
        "from cs_compat.appliance.cluster import ApplianceEnvironment, appliance_environ",
    ),
    "cerebras_appliance.errors": (
        "Errors of the original's appliance, which programs raise and catch by name.",
        """from cs_compat.appliance.cluster import (
    ApplianceClientException, ApplianceCompilationError, ApplianceDeadlockError, ApplianceNanError,
    ApplianceUnknownError, ApplianceVersionError, ClusterJobCancelledByCsctl, ClusterJobInitError,
)""",
    ),
    "cerebras_appliance.log": ("", "import cs_compat.appliance.log as same"),
    "cerebras_appliance.pb": ("", "import cerebras.pb as same"),
    "cerebras_appliance.run_utils": (
        "Helpers of run scripts, as releases 1.7 to 2.2 import them.",
        """from cs_compat.appliance.messages import (
    DebugArgs, get_debug_args, set_default_ini, set_ini, update_debug_args_from_keys,
    update_debug_args_with_autogen_policy, update_debug_args_with_mem_limits, write_debug_args,
)""",
    ),
    "cerebras_appliance.storage": (
        "Checkpoints as files and as objects of an S3 store.",
        """from cs_compat.appliance.storage import (
    H5Deleter, H5Reader, H5Writer, S3Deleter, S3Reader, S3Writer,
    StorageDeleter, StorageReader, StorageWriter,
)""",
    ),
    "cerebras_appliance.storage.base_storage": (
        "Base classes of readers, writers and deleters, chosen by the path of a file or object.",
        """from cs_compat.appliance.storage import (
    Access, PathLike, Storage, StorageDeleter, StorageReader, StorageWriter,
)""",
    ),
    "cerebras_appliance.storage.h5_storage": (
        "HDF5 files: a data set with attributes for each key.",
        "from cs_compat.appliance.storage import H5Deleter, H5Reader, H5Writer",
    ),
    "cerebras_appliance.storage.s3_storage": (
        "Objects of an S3 store: each is an HDF5 file.",
        "from cs_compat.appliance.storage import S3Deleter, S3Reader, S3Writer",
    ),
    "cerebras_appliance.utils": ("Helpers of programs of the original stack.", ""),
    "cerebras_appliance.utils.classes": (
        "Helpers for classes.",
        "from cs_toolkit.subclasses import retrieve_all_subclasses",
    ),
    "cerebras_appliance.utils.debug_args": (
        "Debug arguments of the original's appliance.",
        """from cs_compat.appliance.messages import (
    DebugArgs, ExecutionStrategy, get_debug_args, update_debug_args_from_keys, write_debug_args,
)""",
    ),
    "cerebras_appliance.utils.file": ("Helpers for files.", "from cs_toolkit.files import create_symlink"),
    "cerebras_appliance.utils.ini": (
        "Settings of the original's compiler in its debug arguments.",
        "from cs_compat.appliance.messages import set_default_ini, set_ini",
    ),
    "cerebras_appliance.utils.units": (
        "Conversion of bytes to larger units.",
        "from cs_toolkit.units import bytes_to_human, convert_byte_unit",
    ),
    "cerebras_tensorflow": ("TensorFlow programs of the appliance generation, releases 1.6 to 1.8.", ""),
    "cerebras_tensorflow.cs_estimator_app": (
        "The estimator of the appliance generation.",
        "from cs_compat.tensorflow.estimators import CerebrasAppEstimator",
    ),
    "cerebras_tensorflow.cs_estimator_spec": (
        "The result of a `model_fn`.",
        "from estimator import CSEstimatorSpec",
    ),
    "cerebras_tensorflow.graph_extraction": (
        "Enables and disables the summaries of a model.",
        "from cs_compat.tensorflow.helpers import cs1_disable_summaries, cs1_enable_summaries",
    ),
    "cerebras_tensorflow.saver": ("Checkpoints.", ""),
    "cerebras_tensorflow.saver.checkpoint_reader": (
        "The checkpoints of a folder, and the variables in one of them.",
        "from cs_compat.tensorflow.helpers import CheckpointReader",
    ),
    "cerebras_tensorflow.summary": (
        "Summaries and types within a model.",
        "from cs_compat.tensorflow.helpers import boundary_cast, summarize_tensor, summary_layer",
    ),
    "tensorflow_estimator": ("The removed package, for imports of single classes from it.", ""),
    "tensorflow_estimator.python": ("Module paths of the removed package.", ""),
    "tensorflow_estimator.python.estimator": ("Module paths of the removed package.", ""),
    "tensorflow_estimator.python.estimator.estimator": (
        "The class Estimator.",
        "from cs_compat.tensorflow.estimators import Estimator",
    ),
    "tensorflow_estimator.python.estimator.model_fn": (
        "The class EstimatorSpec.",
        "from estimator import EstimatorSpec, ModeKeys",
    ),
    "tensorflow_estimator.python.estimator.run_config": (
        "The class RunConfig.",
        "from estimator import RunConfig",
    ),
}
"""Docstring and imports of each module; the name `same` is the module itself, under another name."""

# Programs take another branch if they find these names.
_WEIGHT_STREAMING: Mapping[str, tuple[str, str]] = {
    "cerebras.tf.ws": ("The names of weight streaming: the same classes with another execution mode.", ""),
    "cerebras.tf.ws.cs_estimator_ws": (
        "The estimator for weight streaming, under its original name.",
        "from cs_compat.tensorflow.estimators import WeightStreamingEstimator as CerebrasEstimator",
    ),
    "cerebras.tf.ws.ws_sparsify": (
        "Names of sparsity that TensorFlow programs import; there is no sparsifier to choose.",
        "from cs_compat.tensorflow.estimators import SPARSIFIER_MAP, get_AdamW_aware_sparsifier_class",
    ),
    "tfwse": ("Programs that find this name take their branch for weight streaming.", ""),
}

# Libraries take another branch if they find these names.
_PYTORCH: Mapping[str, tuple[str, str]] = {
    "torch_xla": (
        "Names of a library that programs of the original stack import.",
        "from . import _XLAC",
    ),
    "torch_xla._XLAC": (
        "Functions of the library's extension.",
        "from cs_compat.torch.xla import _xla_set_parameter_name",
    ),
    "torch_xla.core": ("Tasks of a job, by the names of the library.", ""),
    "torch_xla.core.xla_model": (
        "The place of this task in its job.",
        "from cstorch.v1.session.core.cb_model import get_ordinal, num_tasks as xrt_world_size",
    ),
    "torch_xla.utils": ("Helpers.", ""),
    "torch_xla.utils.utils": (
        "A loader that repeats one batch.",
        "from cs_compat.torch.xla import SampleGenerator",
    ),
}

# Packages that have modules in other folders, too.
_SHARED = frozenset({"cerebras", "cerebras.tf"})

# Packages whose modules are attributes as soon as the package is imported.
_COMPLETE = "cerebras_appliance"


def install(folder: str, weight_streaming: bool = False, pytorch: bool = False) -> None:
    """Make the modules importable.

    Args:
        folder: Path of `cs_compat/modules`, as it is in `sys.path`.
        weight_streaming: Includes the modules of `python-ws`.
        pytorch: Includes the modules of `python-pt`.
    """
    modules = {
        **_ANYWHERE,
        **(_WEIGHT_STREAMING if weight_streaming else {}),
        **(_PYTORCH if pytorch else {}),
    }
    # The modules in `cerebras.pytorch` are in no table here, but in that of `cstorch.aliases`.
    packages = {"cerebras.pytorch", *(name.rpartition(".")[0] for name in modules)}

    def find_package(path: str) -> _Finder:
        if path != folder and not path.startswith(f"{folder}/"):
            raise ImportError(f"{path} is not below {folder}")
        return _Finder(folder, path[len(folder) + 1 :].replace("/", "."), modules, packages)

    sys.path_hooks.insert(0, find_package)
    sys.path_importer_cache.pop(folder, None)


class _Finder:
    """Finds and loads the modules of one package of the table.

    A package may be imported by several names. Its modules are the same objects under all of them, so that
    changes to one are visible in the other.

    Args:
        folder: Path of `cs_compat/modules`.
        package: Name of the package in the table; "" for the modules that are in no package.
        modules: The table.
        packages: Names in the table that have modules.
    """

    def __init__(
        self, folder: str, package: str, modules: Mapping[str, tuple[str, str]], packages: set[str]
    ) -> None:
        self._folder = folder
        self._package = package
        self._modules = modules
        self._packages = packages

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of a module; None if the table has none of this name."""
        name = self._table_name(fullname)
        if name not in self._modules:
            return None
        loader: Any = self
        is_package = name in self._packages
        spec = ModuleSpec(fullname, loader, origin=self.get_filename(fullname), is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [f"{self._folder}/{name.replace('.', '/')}"]
        return spec

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """Yield the names of the modules and whether they are packages, as `pkgutil` asks."""
        for name in self._modules:
            package, _, own = name.rpartition(".")
            if package == self._package:
                yield prefix + own, name in self._packages

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the imports of a module. If it is another name of a module, replace it by that one."""
        names = vars(module)
        if module.__name__ in _SHARED:
            names["__path__"] = _Folders(module.__path__, module.__name__)
        exec(self.get_code(module.__name__), names)
        if "same" in names:
            sys.modules[module.__name__] = names["same"]
            return
        if public := [name for name in names if not name.startswith("__")]:
            names.setdefault("__all__", public)
        if module.__name__ == _COMPLETE:
            for name in self._modules:
                if name.startswith(f"{_COMPLETE}."):
                    import_module(name)

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of a module."""
        return compile(self.get_source(fullname), self.get_filename(fullname), "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        """Return the docstring and the imports of a module as text."""
        name = self._table_name(fullname)
        if name != fullname:
            return f"import {name} as same\n"
        docstring, imports = self._modules[name]
        return f'"""{docstring}"""\n\n{imports}\n'

    def get_filename(self, fullname: str) -> str:
        """Return the path that the file of a module would have."""
        name = self._table_name(fullname)
        place = f"{self._folder}/{name.replace('.', '/')}"
        return f"{place}/__init__.py" if name in self._packages else f"{place}.py"

    def is_package(self, fullname: str) -> bool:
        """Return True if a module has modules."""
        return self._table_name(fullname) in self._packages

    def _table_name(self, fullname: str) -> str:
        own = fullname.rpartition(".")[2]
        return f"{self._package}.{own}" if self._package else own


class _Folders(Sequence[str]):
    """The folders of a shared package in all entries of `sys.path`; follows changes of `sys.path`.

    `cerebras.modelzoo`, for example, is found where it is installed, or where the program adds its folder to
    `sys.path`.
    """

    def __init__(self, own: Iterable[str], package: str) -> None:
        self._own = list(own)
        self._package = package

    def _find_all(self) -> list[str]:
        return extend_path(self._own, self._package)

    def __getitem__(self, index: Any) -> Any:
        return self._find_all()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._find_all())

    def __len__(self) -> int:
        return len(self._find_all())
