"""The tiny model of the unit tests, whose fixtures these tests share."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_home = Path(__file__).parents[2] / "unit" / "estimator" / "conftest.py"
_spec = spec_from_file_location("tiny_estimator_fixtures", _home)
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
_spec.loader.exec_module(_module)

tiny = _module.tiny
tiny_input = _module.tiny_input
tiny_model = _module.tiny_model
_no_job = _module._no_job
