"""All parsers of bytes from the network or from files, on their corpus and on mutations of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.replay import check_corpus
from tests.fuzz.target import CORPUS, DIRECTORY_VARIABLE, HERE, NATIVE_MODULES, find_target, target_names

ROOT = HERE.parents[1]
NAMES = target_names()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(NATIVE_MODULES)])
def test_a_parser_raises_only_errors_that_callers_handle(name: str) -> None:
    check_corpus(find_target(name))


@pytest.mark.parametrize("module", NATIVE_MODULES)
def test_the_parsers_of_libraries_neither_crash_nor_hang(module: str) -> None:
    """In a child process, which a crash would end."""
    names = [name for name in NAMES if name.startswith(f"{module}.")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.replay", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    ("target", "output", "code", "findings", "crashes"),
    [
        ("executables.load", "==7== ERROR: libFuzzer: deadly signal", 77, 0, 1),
        ("executables.load", "", -signal.SIGPROF, 0, 1),  # the limit of CPU time for reading one
        ("executables.load", " === Uncaught Python exception: ===", 77, 1, 0),
        ("wire.lines", "==7== ERROR: libFuzzer: deadly signal", 77, 1, 0),
    ],
)
def test_a_known_crash_is_no_finding_and_leaves_no_files(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    target: str,
    output: str,
    code: int,
    findings: int,
    crashes: int,
) -> None:
    folders: list[Path] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        folders.append(Path(env[DIRECTORY_VARIABLE]))
        assert folders[-1].is_dir()
        if code > 0:
            (prefix,) = (word.partition("=")[2] for word in command if word.startswith("-artifact_prefix"))
            Path(prefix, f"crash-{len(folders)}").touch()
        return subprocess.CompletedProcess(command, code, output.encode())

    monkeypatch.setattr(subprocess, "run", run)
    result = fuzz(target, 0, tmp_path)
    assert (len(result.findings), result.crashes) == (findings, crashes)
    assert not any(folder.exists() for folder in folders)
