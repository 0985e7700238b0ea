"""Artifacts: written, opened again, named by what was compiled."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cgc import artifact
from cgc.artifact import (
    Artifact,
    artifact_key,
    artifact_lock,
    artifact_path,
    compiler_sources,
    file_entries,
    open_artifact,
    publish,
    tool_version,
    tool_versions,
)
from cgc.manifest import (
    FILES,
    FORMAT_VERSION,
    ExecutableEntry,
    FabricName,
    Interface,
    Manifest,
    PipelinedEstimates,
)
from cs_toolkit.step import CompiledStep, Executable, StepInterface, TensorSpec

KEY = "ab" * 32
INTERFACE = StepInterface(
    inputs=(TensorSpec("input_0", "float32", (8, 12)), TensorSpec("input_1", "int64", (8,))),
    state=(TensorSpec("state.model.w", "float32", (12, 4)), TensorSpec("state.global_step", "int64", ())),
    outputs=(TensorSpec("output_loss", "float32", ()),),
    updated=("state.model.w", "state.global_step"),
)
EXECUTABLES = {
    "step": INTERFACE,
    "aside": StepInterface(INTERFACE.inputs[:1], INTERFACE.state[:1], (), ()),
}
CONTENTS = (*FILES["pipelined"], "step.jaxexport", "aside.jaxexport")


@pytest.fixture
def contents():
    return {name: f"content of {name}\n".encode() for name in CONTENTS}


@pytest.fixture
def write(tmp_path, contents):
    """`write(key)`: publishes an artifact in `tmp_path`."""

    def do(key: str = KEY) -> Artifact:
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            tool_version=tool_version(),
            key=key,
            mode="train",
            precision="float32",
            batch_size=8,
            interface=Interface.from_step(INTERFACE),
            executables=[
                ExecutableEntry(name=name, interface=Interface.from_step(interface))
                for name, interface in EXECUTABLES.items()
            ],
            fabric=FabricName(name="cs2", processing_elements=307840),
            estimates=PipelinedEstimates(
                deltat_cycles=669, samples_per_s=1270553.1, active_pes=1234, total_utilization=0.004
            ),
            versions=tool_versions(),
            files=file_entries(contents),
        )
        with artifact_lock(tmp_path, key, timeout_s=0) as lock:
            return publish(lock, manifest, contents)

    return do


def test_the_published_artifact_is_the_one_that_is_opened(write, contents):
    written = write()
    opened = open_artifact(written.path)
    assert opened == written
    assert opened.interface == INTERFACE
    assert opened.estimates.deltat_cycles == 669
    assert {name: opened.read(name) for name in CONTENTS} == contents
    data = {name: contents[f"{name}.jaxexport"] for name in EXECUTABLES}
    assert opened.step == CompiledStep(
        opened.key,
        "cs2",
        "pipelined",
        INTERFACE,
        tuple(
            Executable(name, interface, hashlib.sha256(data[name]).hexdigest(), len(data[name]))
            for name, interface in EXECUTABLES.items()
        ),
    )
    assert {name: opened.executable_bytes(name) for name in EXECUTABLES} == data


def test_nothing_but_the_artifact_is_left(write, tmp_path):
    path = write().path
    assert path == artifact_path(tmp_path, KEY) == tmp_path / f"cs_{KEY}"
    assert list(tmp_path.iterdir()) == [path]
    assert {file.name for file in path.iterdir()} == {*CONTENTS, "manifest.json"}


def test_compile_dir_is_created_with_its_parents(contents, write, tmp_path):
    with artifact_lock(tmp_path / "a" / "b", KEY, timeout_s=0) as lock:
        publish(lock, write().manifest, contents)
    assert open_artifact(tmp_path / "a" / "b" / f"cs_{KEY}").key == KEY


def test_files_have_the_permissions_of_ordinary_files(write, tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.mkdir()
    (ordinary / "file").touch()
    path = write().path
    assert path.stat().st_mode == ordinary.stat().st_mode
    assert (path / "plan.json").stat().st_mode == (ordinary / "file").stat().st_mode


def test_publishing_again_replaces(write, contents):
    first = write()
    (first.path / "stray").touch()
    contents["plan.json"] = b"other"
    second = write()
    assert open_artifact(second.path).read("plan.json") == b"other"
    assert not (second.path / "stray").exists()


def test_manifest_is_readable_json_with_a_digest_of_every_file(write):
    fields = json.loads((write().path / "manifest.json").read_text())
    assert set(fields["files"]) == set(CONTENTS)
    assert [executable["name"] for executable in fields["executables"]] == ["step", "aside"]
    assert fields["interface"]["inputs"][0] == {"name": "input_0", "dtype": "float32", "shape": [8, 12]}
    assert {"python", "jax", "jaxlib", "xdsl"} == set(fields["versions"])


LAYERS = [("block", "dense"), ()]


def test_key_depends_on_text_layers_options_and_fabric_and_on_nothing_else():
    base = artifact_key("module", LAYERS, {"passes": "dce", "x": 1}, {"name": "cs2"})
    assert len(base) == 64
    assert set(base) <= set("0123456789abcdef")
    assert base == artifact_key("module", LAYERS, {"x": 1, "passes": "dce"}, {"name": "cs2"})
    others = [
        artifact_key("module ", LAYERS, {"passes": "dce", "x": 1}, {"name": "cs2"}),
        artifact_key("module", LAYERS, {"passes": "cse", "x": 1}, {"name": "cs2"}),
        artifact_key("module", LAYERS, {"passes": "dce", "x": 1}, {"name": "cs3"}),
        artifact_key("module", LAYERS, {"passes": "dce"}, {"name": "cs2", "x": 1}),
        artifact_key("module", [("other",)], {"passes": "dce", "x": 1}, {"name": "cs2"}),
    ]
    assert len({base, *others}) == 6


def test_key_changes_with_jax_and_with_the_compilers_own_code(monkeypatch):
    base = artifact_key("module", LAYERS, {}, {})
    with monkeypatch.context() as patch:
        patch.setattr("cgc.artifact.metadata.version", lambda name: "99.0")
        assert artifact_key("module", LAYERS, {}, {}) != base
    monkeypatch.setattr("cgc.artifact.tool_version", lambda: "cgc-0000000000000000")
    assert artifact_key("module", LAYERS, {}, {}) != base


def test_the_key_digests_the_inputs_of_a_compile_and_nothing_else():
    sources = {path.as_posix() for path in compiler_sources()}
    assert {"artifact.py", "placement/place.py", "passes/patterns/adam.mlir", "cirh/base.py"} <= sources
    assert "report/compile_report.html.j2" in sources
    assert not [path for path in sources if path.startswith(("contest/", "importers/", "tools/"))]
    assert not [path for path in sources if path.endswith(".css")]


def test_the_compiler_does_not_use_options_that_its_key_omits():
    left_out = re.compile(r"^\s*(?:from|import) cgc\.(contest|tools)\b", re.MULTILINE)
    root = Path(artifact.__file__).parent
    users = [path.as_posix() for path in compiler_sources() if left_out.search((root / path).read_text())]
    assert users == []


def test_opening_an_artifact_needs_neither_jax_nor_a_framework(write):
    script = """
import sys
from cgc.artifact import open_artifact
artifact = open_artifact(sys.argv[1])
print(artifact.key, [name for name in ("jax", "tensorflow", "torch") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, write().path],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.stdout.split(maxsplit=1) == [KEY, "[]\n"], done.stderr
