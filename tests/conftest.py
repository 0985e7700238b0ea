"""Settings and fixtures of tests of several rooms."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.abc import Loader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from cs_toolkit.garbage import use_infrequent_collection
from tests.systems import CACHE_VARIABLE, RunningSystem, running_system

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("any machine", deadline=None, max_examples=10)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)  # `make soak`
hypothesis.settings.load_profile("any machine")

# What frameworks and thousands of tests leave in a worker stays until it ends: Python would search millions
# of objects for garbage again and again, for a sixth of all the time of the tests.
use_infrequent_collection()

# Killed programs leave files: all of them are in one folder, which is removed with the tests. Files of tests
# stay where pytest keeps them.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    _temporary = TemporaryDirectory(prefix="csrun-tests-", ignore_cleanup_errors=True)
    Path(_temporary.name).chmod(0o711)  # everybody reaches munge's socket in it, or munge does not start
    os.environ["TMPDIR"] = tempfile.tempdir = _temporary.name

# Neither the settings nor the list of jobs of the user who runs the tests.
_home = TemporaryDirectory(prefix="home-")
os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = _home.name

# Many tests run the same programs, on systems of several workers: XLA compiles each of them once.
if CACHE_VARIABLE not in os.environ:  # a worker has that of pytest itself
    _cache = TemporaryDirectory(prefix="cache-")
    os.environ[CACHE_VARIABLE] = _cache.name

# Hundreds of processes import the toolkit, and pytest rewrites every file of tests: all is compiled once,
# also where an image says that Python keeps nothing it has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# TensorFlow has gradients of dilated convolutions in oneDNN only, which it uses by default on CPUs with
# AVX-512: the numbers that tests compare with come from it on every machine.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# Most programs of tests run for some steps: LLVM optimizes nothing and gets a program in one piece, and an
# older part of XLA writes fused loops, which compiles a step in a sixth of the time. Numbers are equal but
# for rounding. `make demo` and the benchmarks run what users run.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_use_fusion_emitters=0",
)

# More processes than CPUs: further threads of numpy, PyTorch and JAX only take the CPU from other processes.
# A CS system computes with all CPUs all the same, as for a user.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NPROC"):
    os.environ.setdefault(_variable, "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and processes of tests would inherit it: Ctrl-C could not be tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup, with the same consequence
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

MODELS = Path(__file__).parents[1] / "models"
MODULES = ("params", "run", "data", "model")

Calls = Callable[[Callable[[], object]], int]


@pytest.fixture(scope="session")
def calls() -> Calls:
    """Count the Python functions that are called: a measure of work, the same on every machine."""

    def count(body: Callable[[], object]) -> int:
        found = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal found
            found += event == "call"

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            body()
        finally:
            sys.setprofile(before)
        return found

    return count


IN_TURN = {
    "browser": "processes",
    "containers": "processes",
    "faults": "processes",
    "faults/run": "jobs",
    "faults/soak": "jobs",
    "slurm": "cluster",
}
"""Folders whose tests start many processes, or wait for some, and the worker that runs them one by one.

The tests take at least as long as the longest of these groups: one for all faults would be too long.
"""

VERIFIED = ("filecheck", "property", "unit/cgc", "unit/cstorch")
"""Folders in whose tests the compiler verifies after every pass, also in processes that they start.

That takes as long as the passes. Other tests compile steps of the same kinds, and look at the results.
"""

LONG = (*sorted(IN_TURN), "clients", "property", "unit/cgc/fusion", "unit/models")
"""Folders whose files take longest: they are begun first, so that no worker ends long after the others."""


@pytest.fixture(scope="session", autouse=True)
def _away_from_the_checkout() -> Iterator[None]:
    """A compilation leaves a file in the current directory."""
    with TemporaryDirectory(prefix="current-") as folder, chdir(folder):
        yield


@pytest.fixture(scope="module", autouse=True)
def _verified_passes(request: pytest.FixtureRequest) -> Iterator[None]:
    wanted = _room(request.path).startswith(VERIFIED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CGC_VERIFY", os.environ.get("CGC_VERIFY", "1" if wanted else "0"))
        yield


@pytest.fixture(scope="session", autouse=True)
def unoptimized_tensorflow() -> None:
    """Disable graph optimization in workers that import TensorFlow while they collect tests."""
    if "tensorflow" in sys.modules:
        import_module("tests.clients.tensorflow_graphs").optimize_graphs(False)


@pytest.fixture(scope="module")
def optimized_tensorflow(unoptimized_tensorflow: None) -> Iterator[None]:
    """TensorFlow computes as for a user: in 16 bits its optimized graphs round after other operations."""
    optimize = import_module("tests.clients.tensorflow_graphs").optimize_graphs
    optimize(True)
    yield
    optimize(False)


@contextmanager
def _placement_moves(per_kernel: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("cgc.placement.place"), "_MOVES_PER_KERNEL", per_kernel)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_placement() -> Iterator[None]:
    """Most tests need a placement and not a good one: the search for it takes a tenth of its time."""
    with _placement_moves(4):
        yield


@pytest.fixture(scope="module")
def full_placement(quick_placement: None) -> Iterator[None]:
    """The search for a placement takes as many moves as for a user."""
    with _placement_moves(60):
        yield


Modules = dict[str, ModuleType]
Example = Callable[[str], AbstractContextManager[Modules]]


@contextmanager
def _example(name: str) -> Iterator[Modules]:
    """The modules of an example program by name, imported as its run.py imports them.

    Afterwards their plain names mean what they meant before.
    """
    path = list(sys.path)
    before = {module: sys.modules.pop(module) for module in MODULES if module in sys.modules}
    sys.path[:0] = [str(MODELS / name / "tf"), str(MODELS.parent)]
    try:
        yield {module: import_module(module) for module in MODULES}
    finally:
        sys.path[:] = path
        for module in MODULES:
            sys.modules.pop(module, None)
        sys.modules.update(before)


@pytest.fixture(scope="session")
def example() -> Example:
    """Imports an example program by the name of its folder, for a with statement."""
    return _example


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """The CS system of all tests of a worker that do not break it."""
    with running_system(tmp_path_factory.mktemp("system")) as running:
        yield running


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all of a group.

    Not by marks and `--dist=loadgroup`, which pytest-xdist 3.8 does not see with pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return Groups(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Workers of `--numprocesses=auto`: the three that run `IN_TURN` wait most of their time."""
    return len(os.sched_getaffinity(0)) + 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which groups are begun.

    First what is run in turn, which waits most of its time, and what forks the worker processes of a torch
    DataLoader, before the threads of TensorFlow exist: a child that is forked while one of them holds a lock
    may wait for it forever. Then what takes long, then the largest groups.
    """
    sizes = Counter(_group(item.nodeid) for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int, str, bool]:
        group, forks = _group(item.nodeid), "torch" in item.path.name
        is_first = forks or group in IN_TURN.values()
        return not is_first, not _room(item.path).startswith(LONG), -sizes[group], group, not forks

    items.sort(key=place)


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a fresh checkout, let each worker rewrite the asserts of a part of all files.

    Workers collect the same files at the same time: each would rewrite all of them, 5 s of a CPU.
    """
    worker, rewriter = os.environ.get("PYTEST_XDIST_WORKER", ""), session.config.pluginmanager.rewrite_hook
    if not worker or not isinstance(rewriter, Loader):
        return
    tests = Path(__file__).parent
    files = sorted([*tests.rglob("test_*.py"), *tests.rglob("conftest.py")])
    for file in files[int(worker[2:]) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        spec = spec_from_file_location("a test", file, loader=rewriter)
        module = module_from_spec(spec)
        module.__dict__["__builtins__"] = {}  # its first import fails, after its code has been stored
        with suppress(ImportError):
            rewriter.exec_module(module)


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection.

    Nor for the garbage among it, for which a search takes most of a second in every worker.
    """
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Python then ends without the seconds in which it frees all objects of a worker one by one."""
    gc.freeze()


@cache
def _room(file: Path) -> str:
    """Return the path of a file below the tests."""
    return file.relative_to(Path(__file__).parent).as_posix()


def _group(nodeid: str) -> str:
    """Return the group of tests for one worker: a file, a folder of `IN_TURN`, or a guide."""
    file = nodeid.partition("::")[0]
    return nodeid if file.startswith("tests/guides/") else _group_of_file(file)


@cache
def _group_of_file(file: str) -> str:
    _, room, *folders = Path(file).parts
    return IN_TURN.get(f"{room}/{folders[0]}" if folders else room) or IN_TURN.get(room, file)
