"""An option is added in few files, and the page of options is current."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path

import pytest

from cs_toolkit.errors import PACKAGES
from cs_toolkit.execution_options import EXECUTION_VARIABLE, OPTIONS, SHARED_OPTIONS
from cstorch.startup import configure
from estimator import CSRunConfig

ROOT = Path(__file__).parents[2]
MOST_FILES = 6

# Words of every compiled step and of the prose about numbers, which say nothing about the option.
NOT_COUNTED = ("execution", "precision")

# Parameters, fields and functions of the original's API, which must have these names.
ORIGINAL_API = (
    "cs_compat/appliance/configuration.py",  # CSConfig
    "cstorch/distributed/cluster.py",  # ClusterConfig
    "cstorch/distributed/cluster_resolver.py",  # ClusterSpec
    "cstorch/appliance.py",  # performance.micro_batch_size
    "cstorch/loop/loaders.py",  # DataExecutor(micro_batch_size=...)
    "cstorch/v1/session/core/appliance.py",  # ApplianceMode.cs_config
    "cstorch/v1/session/core/cb_model.py",  # set_target_num_replicas
    "cstorch/v1/session/environment.py",  # state().set_num_csx
)

# The same name for something else, or without a decision that depends on the value.
OTHER_MEANINGS = {
    "num_csx": (
        "cs_system/status.py",  # the wafers that a system has, in the JSON of `cs_system status`
        "cs_system/server/status.py",  # the same, in the server
        "cs_system/client/pool.py",  # the same, compared with what a program needs
        "cs_system/monitoring/metrics.py",  # the same, as a metric
    ),
    "num_replicas": (
        "cgc/report/suggestions.py",  # the setting that a suggestion names
        "cs_runtime/run_files.py",  # a key of performance.json
        "cs_system/engine/allowed_ops.py",  # an attribute of XLA's modules
        "input_rules/torch/rules.py",  # an argument of torch's DistributedSampler
    ),
    "micro_batch_size": (
        "cgc/report/data.py",  # a key of compile_report.json: the size that the compiler has chosen
    ),
    "recompute": ("cgc/lowering/convolution.py",),  # a verb in a comment
}


def files_with(name: str) -> Collection[str]:
    """Return the product files that contain an option's name as a word."""
    excluded = {*ORIGINAL_API, *OTHER_MEANINGS.get(name, ())}
    sources = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    found = {str(path.relative_to(ROOT)) for path in sources if re.search(rf"\b{name}\b", path.read_text())}
    assert set(OTHER_MEANINGS.get(name, ())) <= found, "an exclusion is not needed any more"
    assert all((ROOT / path).exists() for path in ORIGINAL_API), "a file was renamed"
    return found - excluded


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in NOT_COUNTED])
def test_an_option_touches_few_files(name: str) -> None:
    found = files_with(name)
    assert "cs_toolkit/execution_options.py" in found
    assert len(found) <= MOST_FILES, sorted(found)


def test_both_front_ends_take_the_options() -> None:
    assert set(OPTIONS) <= set(CSRunConfig._fields)
    assert set(SHARED_OPTIONS) <= set(signature(configure).parameters)
    for taker, names in ((CSRunConfig, OPTIONS), (configure, SHARED_OPTIONS)):
        assert all(f"    {name}: {OPTIONS[name].help[:40]}" in (taker.__doc__ or "") for name in names)


def test_the_page_of_options_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXECUTION_VARIABLE, raising=False)
    spec = spec_from_file_location("option_page", ROOT / "scripts" / "execution_options.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    advice = "the page is older than the record: .venv/bin/python scripts/execution_options.py"
    assert script.PAGE.read_text() == script.page(), advice
