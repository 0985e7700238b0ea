"""Site files and variables with anything in them: settings or errors, never a crash."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csrun.schedulers.registry import BUILT_IN
from csrun.site import CONTAINERS, SiteError
from csrun.site.loading import LoadedSite, SiteFile, load_site
from csrun.site.values import variables
from csrun.tasks.command import bind_directories

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**10),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from([*CONTAINERS, *BUILT_IN, "/images/a.sif", "cs:1", "--nv", "-e", "4:00:00"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from([*variables(), "unknown", ""])


@settings(max_examples=150)
@given(data=st.dictionaries(KEYS, VALUES, max_size=6))
def test_a_file_gives_settings_or_errors_with_their_lines(data: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.yaml"
        path.write_text(json.dumps(data, indent=1), encoding="utf-8")
        loaded, faults = _load({}, path)
    if loaded is None:
        assert faults
        assert all(fault.startswith(f"{path}:") for fault in faults)
    else:
        assert {name for name, origin in loaded.origins.items() if origin != "default"} == set(data)


@settings(max_examples=150)
@given(
    environment=st.dictionaries(
        st.sampled_from([name for names in variables().values() for name in names]),
        SCALARS.map(str) | st.text(max_size=12),
        max_size=6,
    )
)
def test_variables_give_settings_or_errors_with_their_names(environment: dict[str, str]) -> None:
    loaded, faults = _load(environment)
    if loaded is None:
        assert faults
        assert all("environment" in fault for fault in faults)
    else:
        named = {origin.removeprefix("environment ") for origin in loaded.origins.values()} - {"default"}
        assert named <= set(environment)


def _load(environment: dict[str, str], path: Path | None = None) -> tuple[LoadedSite | None, list[str]]:
    try:
        return load_site(environment, path), []
    except SiteError as error:
        return None, error.errors


PATHS = st.lists(st.sampled_from(["a", "b", "a b", "ab"]), max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@given(directories=st.lists(PATHS, max_size=6))
def test_bound_directories_cover_all_and_none_twice(directories: list[str]) -> None:
    bound = [Path(bind) for bind in bind_directories(directories)]
    for directory in map(Path, directories):
        assert sum(directory.is_relative_to(bind) for bind in bound) == 1
    assert all(not first.is_relative_to(second) for first in bound for second in bound if first != second)


def _only(file: Path | None) -> tuple[SiteFile, ...]:
    return (SiteFile("named", file),) if file else ()


@pytest.fixture(autouse=True, scope="module")
def no_file_of_this_machine() -> object:
    """Only variables are set: no site file is found."""
    from csrun.site import loading

    patch = pytest.MonkeyPatch()
    patch.setattr(loading, "site_files", lambda environment, file, directory: _only(file))
    yield
    patch.undo()
