"""Compilations that meet damaged artifacts, each other, death, and full disks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cgc.artifact import open_artifact, tool_version
from cgc.cirh.text import parse_module
from cgc.driver import compile_step
from cgc.errors import ArtifactLockError, ArtifactWriteError
from cgc.execution.compilation import CompileOptions
from cs_toolkit.fabric import load_fabric
from tests.programs.steps import MLP_TRAIN

ROOT = Path(__file__).parents[3]

COMPILER = """
import os, signal, sys
from pathlib import Path
from cgc.cirh.text import parse_module
from cgc.driver import CompileOptions, compile_step
from cs_toolkit.fabric import load_fabric

step, folder, fatal_stage, signal_name = sys.argv[1:]
def progress(stage, done, total):
    print(stage, flush=True)
    if stage == fatal_stage:
        os.kill(os.getpid(), getattr(signal, signal_name))
sys.stdin.readline()
module = parse_module(Path(step).read_text())
result = compile_step(module, Path(folder), CompileOptions(), load_fabric("cs2"), progress)
print("reused" if result.reused else "compiled", result.artifact.path)
"""


@pytest.fixture
def compilers(tmp_path):
    """`compilers(n, stage, signal)`: n processes that compile into one folder once they get a line.

    They send themselves the signal when the stage begins.
    """
    started = []

    def start(count, stage="", signal_name="SIGKILL"):
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", COMPILER, MLP_TRAIN, tmp_path, stage, signal_name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            started.append(process)
        return started[-count:]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def compile_again(tmp_path):
    module = parse_module(MLP_TRAIN.read_text(), str(MLP_TRAIN))
    fabric = load_fabric("cs2")
    return lambda **options: compile_step(module, tmp_path, CompileOptions(), fabric, **options)


def test_tasks_that_compile_simultaneously_compile_once(compilers, tmp_path):
    processes = compilers(3)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    lines = []
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        lines.append(output.splitlines()[-1].split())
    assert sorted(word for word, _ in lines) == ["compiled", "reused", "reused"]
    (path,) = tmp_path.iterdir()
    assert {where for _, where in lines} == {str(path)}
    open_artifact(path)


@pytest.mark.parametrize("stage", ["Matching kernels", "Writing the artifact"])
def test_a_killed_compilation_blocks_nobody_and_leaves_nothing(compilers, compile_again, tmp_path, stage):
    (process,) = compilers(1, stage)
    _, errors = process.communicate("go\n", timeout=100)
    assert process.returncode == -signal.SIGKILL, errors
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert not compile_again().reused
    assert [path.name[:3] for path in tmp_path.iterdir()] == ["cs_"]


@pytest.mark.parametrize("name", ["manifest.json", "step.jaxexport", "compile_report.txt"])
def test_a_damaged_artifact_is_compiled_again_with_a_warning(compile_again, tmp_path, name):
    first = compile_again().artifact
    file = first.path / name
    file.write_bytes(file.read_bytes()[:-3])
    second = compile_again()
    assert not second.reused
    (warning,) = second.warnings
    assert name in warning
    assert "compiled again" in warning
    assert open_artifact(first.path) == second.artifact
    assert compile_again().reused
    assert list(tmp_path.iterdir()) == [first.path]


@pytest.mark.parametrize(
    ("field", "value"), [("format_version", 0), ("tool_version", "cgc-0000000000000000")]
)
def test_an_artifact_of_another_version_is_compiled_again(compile_again, field, value):
    manifest = compile_again().artifact.path / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), field: value}))
    second = compile_again()
    assert not second.reused
    assert str(value) in second.warnings[0]


def test_a_new_version_of_the_compiler_names_the_version_of_the_old_artifact(compile_again, monkeypatch):
    """The key names the version, so the older artifact is next to the new one under another name."""
    with monkeypatch.context() as patch:
        patch.setattr("cgc.artifact.tool_version", lambda: "cgc-00000000000older")
        patch.setattr("cgc.driver.tool_version", lambda: "cgc-00000000000older")
        older = compile_again().artifact.path
    second = compile_again()
    assert not second.reused
    assert second.artifact.path != older
    (warning,) = second.warnings
    for text in (str(older), "cgc-00000000000older", tool_version(), "compiled again"):
        assert text in warning
    assert compile_again().warnings == ()


def test_artifacts_of_other_programs_and_what_is_no_artifact_are_no_reason_for_a_warning(
    compile_again, tmp_path
):
    (tmp_path / "cs_empty").mkdir()
    for name, text in (("cs_bad", "{"), ("cs_list", "[]"), ("cs_fields", '{"versions": 3}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    first = compile_again()
    assert first.warnings == ()
    first.artifact.path.rename(tmp_path / f"cs_{'ab' * 32}")
    assert compile_again().warnings == ()


def test_a_full_disk_is_a_compile_error_and_the_next_try_succeeds(compile_again, tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ArtifactWriteError, match="No space left on device; nothing was written"):
            compile_again()
    assert list(tmp_path.iterdir()) == []
    assert not compile_again().reused


def test_a_folder_that_cannot_be_written_is_noticed_before_compiling(tmp_path):
    (tmp_path / "file").touch()
    stages = []
    with pytest.raises(ArtifactWriteError, match="choose another compile_dir"):
        compile_step(
            parse_module(MLP_TRAIN.read_text()),
            tmp_path / "file" / "below",
            CompileOptions(),
            load_fabric("cs2"),
            lambda *stage: stages.append(stage),
        )
    assert stages == []


def test_waiting_for_another_compiler_names_it_and_ends(compilers, compile_again, tmp_path):
    (process,) = compilers(1, "Matching kernels", "SIGSTOP")  # hangs while it holds the lock
    told = []
    process.stdin.write("go\n")
    process.stdin.flush()
    os.waitpid(process.pid, os.WUNTRACED)  # until it has stopped
    with pytest.raises(ArtifactLockError, match=rf"process {process.pid} on .*more than 0\.1 s"):
        compile_again(lock_timeout_s=0.1, on_wait=told.append)
    assert [f"process {process.pid}" in who for who in told] == [True]
    process.send_signal(signal.SIGCONT)
    assert compile_again(lock_timeout_s=60).reused
