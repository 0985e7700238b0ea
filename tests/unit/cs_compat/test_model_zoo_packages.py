"""Packages that the Model Zoo imports and the environment lacks, or has in versions that do not fit."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from cs_compat.torch import placeholders
from cs_compat.torch.changes import AROUND, CHANGES
from cs_toolkit.import_hooks import on_import

HARNESS = """
import absent_harness.tasks as tasks
from absent_harness.api import Model, register

class Evaluated(Model):
    kind: Model = None

@register("ours")
class Registered:
    pass

try:
    import absent_option
    optional = True
except ImportError:
    optional = False

def evaluate():
    return tasks.find("arithmetic")
"""


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for modules of a package `modelzoo`, with placeholders for missing modules."""
    folder = tmp_path / "modelzoo"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    known = set(sys.modules)
    placeholders.install()
    yield folder
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.filterwarnings("ignore:the package absent_harness is not installed")
def test_a_missing_package_fails_when_it_is_used(zoo: Path) -> None:
    (zoo / "harness.py").write_text(HARNESS)
    harness = import_module("modelzoo.harness")
    assert harness.Registered.__name__ == "Registered"
    assert not harness.optional  # the program has its own answer
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent_harness'") as failed:
        harness.evaluate()
    assert failed.value.name == "absent_harness"
    with pytest.raises(ModuleNotFoundError, match="absent_harness"):
        harness.Evaluated()


def test_each_missing_package_is_named_once(zoo: Path) -> None:
    (zoo / "harness.py").write_text(HARNESS)
    with pytest.warns(UserWarning, match="the package absent_harness is not installed") as warned:
        import_module("modelzoo.harness")
    assert len(warned) == 1


QUIET = """
import contextlib
import warnings

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import absent_option
except ImportError:
    absent_option = None

def unguarded():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import absent_harness
        import absent_harness.io.image
    return absent_harness

def suppressed():
    with contextlib.suppress(ImportError):
        import absent_option
        return absent_option
"""


def test_a_with_statement_guards_no_import(zoo: Path) -> None:
    """Unless it suppresses errors, or is within a `try`."""
    (zoo / "quiet.py").write_text(QUIET)
    quiet = import_module("modelzoo.quiet")
    assert quiet.absent_option is None
    assert quiet.unguarded().__name__ == "absent_harness"
    assert quiet.suppressed() is None


def test_other_programs_get_no_placeholders(zoo: Path) -> None:
    (zoo.parent / "program.py").write_text("import absent_harness\n")
    with pytest.raises(ModuleNotFoundError, match="absent_harness"):
        import_module("program")
    (zoo / "ours.py").write_text("import cerebras.absent\n")
    with pytest.raises(ModuleNotFoundError, match="cerebras"):
        import_module("modelzoo.ours")


def test_the_default_of_an_annotation_counts() -> None:
    from typing import Annotated

    from pydantic import Field, create_model

    module = ModuleType("cerebras.modelzoo.config.utils")
    vars(module)["create_model"] = create_model
    CHANGES[module.__name__](module)
    groups = Annotated[list[int], Field(default=[])]
    made = module.create_model("Made", groups=(groups, ...), rate=(float, ...), size=(int, 3))
    assert made(rate=0.5).model_dump() == {"groups": [], "rate": 0.5, "size": 3}
    with pytest.raises(ValueError, match="rate"):
        made()


def test_names_that_packages_have_removed_are_imported_and_refused_in_use() -> None:
    hub, versions = ModuleType("huggingface_hub"), ModuleType("transformers.utils.versions")
    earlier = ModuleType("huggingface_hub")
    vars(earlier)["__version__"], vars(hub)["__version__"] = "0.36.2", "2.4.0"
    vars(hub)["HfFolder"] = kept = type("HfFolder", (), {})
    for module in (earlier, hub):
        CHANGES["huggingface_hub"](module)
    assert not hasattr(earlier, "Repository")
    CHANGES["transformers.utils.versions"](versions)
    assert hub.HfFolder is kept
    with pytest.raises(ModuleNotFoundError, match="csrun pip install 'huggingface_hub<1'"):
        hub.Repository("folder")
    assert versions.importlib_metadata.version("torch") == torch.__version__


def test_tokenizers_of_another_year_are_a_warning() -> None:
    def require_version_core(requirement: str) -> None:
        raise ImportError(f"{requirement} is required, found 0.22\nTry: pip install it")

    module = ModuleType("modelzoo.transformers.pytorch.huggingface_common.utils.versions")
    vars(module)["require_version_core"] = require_version_core
    CHANGES[module.__name__](module)
    with pytest.warns(UserWarning, match=r"^tokenizers<0.11 is required, found 0.22$"):
        module.require_version_core("tokenizers<0.11")


SAMPLES = """
import numpy as np

class Sample(list):
    pass

def kinds(*samples):
    return [sample == [] for sample in samples], [sample != [] for sample in samples], [1] == [1] != [2]
"""


def test_no_array_equals_an_empty_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are those before NumPy 1.25; other packages and compiled files are unchanged."""
    package = "modelzoo.transformers.data_processing.scripts.hdf5_preprocessing"
    folder = tmp_path.joinpath(*package.split("."))
    (folder / "below").mkdir(parents=True)
    for path in (folder, folder / "below"):
        (path / "preprocessors.py").write_text(SAMPLES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    known = set(sys.modules)
    on_import({}, AROUND)
    try:
        changed = import_module(f"{package}.preprocessors")
        unchanged = import_module(f"{package}.below.preprocessors")
    finally:
        for name in set(sys.modules) - known:
            del sys.modules[name]
    samples = np.ones((5, 64)), np.ones(0), torch.ones(2), [], [1], changed.Sample(), None
    equal = [False, False, False, True, False, True, False]
    assert changed.kinds(*samples) == (equal, [not is_equal for is_equal in equal], True)
    with pytest.raises(ValueError, match="shapes"):
        unchanged.kinds(samples[0])
    assert not (folder / "__pycache__").exists()
    assert changed.kinds.__code__.co_firstlineno == unchanged.kinds.__code__.co_firstlineno


def test_values_that_are_objects_are_serialized_without_warnings() -> None:
    from pydantic import BaseModel, create_model

    class Configuration(BaseModel):
        optimizer: dict[str, float]

    configuration = Configuration.model_construct(optimizer=object())
    with pytest.warns(UserWarning, match="Pydantic serializer warnings"):
        configuration.model_dump()
    module = ModuleType("cerebras.modelzoo.config.utils")
    vars(module)["create_model"] = create_model
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        CHANGES[module.__name__](module)
        configuration.model_dump()
        warnings.warn("another one", stacklevel=1)
    assert [str(warning.message) for warning in warned] == ["another one"]


def test_serializers_and_tree_specs_as_in_older_versions() -> None:
    import dataclasses
    from typing import Annotated, Any

    from pydantic import BaseModel, SerializationInfo, WrapSerializer
    from torch.utils import _pytree as pytree

    module = ModuleType("cerebras.modelzoo.trainer.validate")
    vars(module).update(WrapSerializer=WrapSerializer, dataclasses=dataclasses)
    CHANGES[module.__name__](module)

    def pack(value: Any, handler: Any, info: SerializationInfo) -> Any:
        return {"packed": handler(value, info)}

    annotation = Annotated[int, module.WrapSerializer(pack)]
    model = type("M", (BaseModel,), {"__annotations__": {"x": annotation}})
    assert model(x=1).model_dump() == {"x": {"packed": 1}}

    values, spec = pytree.tree_flatten((1, 2))
    assert pytree.tree_unflatten(values, module.dataclasses.replace(spec, type=list)) == [1, 2]


def test_a_schedule_that_computes_no_rates_may_be_the_first_of_a_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The `step` leaves them to the CS system."""

    class Counting(torch.optim.lr_scheduler.LambdaLR):
        def step(self, epoch: int | None = None) -> None:
            self.last_epoch += 1

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.25)

    def sequence() -> torch.optim.lr_scheduler.SequentialLR:
        parts = [Counting(optimizer, lambda step: 1.0), Counting(optimizer, lambda step: 0.5)]
        return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [3])

    kind = torch.optim.lr_scheduler.LRScheduler
    monkeypatch.delattr(kind, "_last_lr", raising=False)
    with pytest.raises(AttributeError, match="_last_lr"):
        sequence()
    monkeypatch.setattr(kind, "_last_lr", None, raising=False)
    CHANGES["torch.optim.lr_scheduler"](sys.modules["torch.optim.lr_scheduler"])
    assert sequence().get_last_lr() == [0.25]
