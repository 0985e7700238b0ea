"""Messages for programs that import missing modules."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from csrun import missing_modules
from csrun.missing_modules import hint


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("tensorflow.compat", "-m pip install 'cs-toolkit[tf]'"),
        ("torch", "-m pip install 'cs-toolkit[torch]'"),
        ("hdf5plugin", "-m pip install 'cs-toolkit[torch]'"),
        ("sklearn.datasets", "csrun pip install scikit-learn"),
        ("tf_keras", "csrun pip install --no-deps tf_keras"),
        ("tfwse", "run the program with python-ws"),
        ("torch_xla.core", "run the program with python-pt"),
        ("cerebras.modelzoo.trainer", "add the folder that has the module to PYTHONPATH"),
        ("cerebras_appliance.nothing", "cerebras_appliance is a name of the toolkit"),
        ("cerebras_cloud_sdk", "no package of the index adds to it"),
        ("cstorch.nothing", "check the name"),
        ("other.part", "csrun pip install other (the package may have another name"),
    ],
)
def test_the_package_of_a_module_is_named(module: str, said: str) -> None:
    told = hint(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert told is not None
    assert f"'{module}'" in told
    assert said in told


@pytest.mark.parametrize(
    "name", ["cerebras", "cerebras.x", "cerebras_pytorch.x", "cerebras_tensorflow", "estimator.x", "csrun.x"]
)
def test_names_of_the_toolkit_are_never_to_be_installed(name: str) -> None:
    assert "pip install" not in str(hint(ModuleNotFoundError(f"No module named {name!r}", name=name)))


def test_a_distribution_without_metadata_is_no_missing_module() -> None:
    assert hint(PackageNotFoundError("cerebras_pytorch")) is None


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Keras cannot be imported. Check that it is installed."),
        AttributeError("`dense` is not available with Keras 3."),
    ],
)
def test_a_program_for_keras_2_gets_the_name_of_its_package(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hint(error) is None, "tf_keras is installed here: something else is wrong"
    monkeypatch.setattr(missing_modules, "find_spec", lambda name: None)
    assert hint(error) == f"{error} The program is for Keras 2: csrun pip install --no-deps tf_keras"
    assert hint(AttributeError("no attribute 'x'")) is None
