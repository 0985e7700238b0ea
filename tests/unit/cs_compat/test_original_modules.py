"""The table of modules of the original stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = ROOT / "cs_compat" / "modules"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python as the wrappers do."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": f"{MODULES}:{ROOT}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_of_the_table_can_be_imported() -> None:
    program = """
import importlib, inspect, pkgutil, sys
tops = ("cerebras", "cerebras_appliance", "cerebras_tensorflow", "tensorflow_estimator", "tfwse", "torch_xla")
found = set(tops)
for top in tops:
    package = importlib.import_module(top)
    found |= {module.name for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"{top}.")}
    for name in sorted(found):
        module = importlib.import_module(name)
        assert all(hasattr(module, public) for public in module.__dict__.get("__all__", ())), name
from cs_compat import original_modules as table
named = {**table._ANYWHERE, **table._WEIGHT_STREAMING, **table._PYTORCH}
assert not named.keys() - found, named.keys() - found
import cerebras.tf.run_config as run_config
assert "from estimator import CSRunConfig" in inspect.getsource(run_config)
print(run_config.__all__, run_config.__doc__)
"""
    result = run("-c", program, CSRUN_PT="1", CSRUN_EXECUTION="weight_streaming")
    assert result.stdout == "['CSRunConfig'] The configuration of a run.\n", result.stderr


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        (
            "from cerebras.tf.host_call import missing",
            "ImportError: cannot import name 'missing' from 'cerebras.tf.host_call' "
            f"({MODULES}/cerebras/tf/host_call.py)",
        ),
        ("import cerebras.tf.missing", "ModuleNotFoundError: No module named 'cerebras.tf.missing'"),
        ("import cerebras.tf.ws", "ModuleNotFoundError: No module named 'cerebras.tf.ws'"),
        ("import torch_xla", "ModuleNotFoundError: No module named 'torch_xla'"),
    ],
)
def test_a_missing_name_is_reported_as_for_files(statement: str, error: str) -> None:
    result = run("-c", f"try: {statement}\nexcept ImportError as e: print(f'{{type(e).__name__}}: {{e}}')")
    assert result.stdout == f"{error}\n", result.stderr


def test_a_module_is_the_same_under_all_of_its_names() -> None:
    program = (
        "import cerebras.appliance.utils.ini, cerebras.pb.stack.full_pb2, cerebras_appliance, pickle\n"
        "import cerebras_appliance.pb.stack.full_pb2 as full\n"
        "from cerebras.appliance.errors import ApplianceNanError\n"
        "assert cerebras.appliance.utils.ini is cerebras_appliance.utils.ini\n"
        "assert full is cerebras.pb.stack.full_pb2\n"
        "copied = pickle.loads(pickle.dumps(ApplianceNanError))\n"
        "assert copied is cerebras_appliance.errors.ApplianceNanError\n"
    )
    result = run("-c", program)
    assert result.returncode == 0, result.stderr


def test_a_module_can_be_run() -> None:
    result = run("-m", "cerebras.pb.common.tri_state_pb2")
    assert (result.returncode, result.stderr) == (0, "")
