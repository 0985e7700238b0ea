"""Whole training runs over mutual TLS compute the bits of those without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cs_toolkit.execution_options import EXECUTION_VARIABLE
from tests.certificates import SiteCertificates
from tests.faults.run.training_jobs import checkpoint, finish, launch
from tests.processes import wait_until
from tests.systems import RunningSystem, running_system

LIMIT_S = 100.0
STEPS = 30


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteCertificates:
    return SiteCertificates(tmp_path_factory.mktemp("site"))


def make_directory(directory: Path) -> Path:
    directory.mkdir()
    return directory


def train(system: RunningSystem, folder: Path, tasks: int = 2, **environment: str) -> dict[str, np.ndarray]:
    """Return the checkpoint of a job."""
    code, output = finish(launch(system, folder, STEPS, tasks, **environment))
    assert code == 0, output + system.log()
    return checkpoint(folder)


def assert_equal(plain: dict[str, np.ndarray], encrypted: dict[str, np.ndarray]) -> None:
    assert plain["state.global_step"] == STEPS
    assert plain.keys() == encrypted.keys()
    assert all((plain[key] == encrypted[key]).all() for key in plain)


def test_pipelined_run_with_workers(site: SiteCertificates, tmp_path: Path) -> None:
    results = []
    for name, flags, environment in (
        ("plain", [], {}),
        ("tls", [f"--certs={site.system.directory}"], {"CS_CERTS": str(site.user.directory)}),
    ):
        with running_system(make_directory(tmp_path / f"{name}-system"), flags) as system:
            results.append(train(system, make_directory(tmp_path / name), tasks=3, **environment))
            assert ("TLS with the certificate" in system.log()) == (name == "tls")
    assert_equal(*results)


def test_job_without_certificate_is_refused_before_it_starts(site: SiteCertificates, tmp_path: Path) -> None:
    with running_system(make_directory(tmp_path / "system"), [f"--certs={site.system.directory}"]) as system:
        code, output = finish(launch(system, make_directory(tmp_path / "job"), 30, CS_IP=system.address))
    assert code == 1
    assert "it uses TLS, and you have named no certificate" in output


@contextmanager
def encrypted_group(site: SiteCertificates, directory: Path) -> Iterator[RunningSystem]:
    """A group of two systems whose connections are those between hosts, encrypted."""
    file, certs = directory / "group.json", f"--certs={site.system.directory}"
    command = [sys.executable, "-m", "cs_system", "member", f"--group-file={file}", certs]
    log = directory / "member.log"
    with log.open("wb") as stderr:
        member = subprocess.Popen(command, stderr=stderr)
        try:
            flags = ["--num-csx=2", "--host=0.0.0.0", "--advertise=127.0.0.1", f"--group-file={file}", certs]
            with running_system(directory, flags) as system:
                wait_until(lambda: "a member of the group" in log.read_text(), log.read_text)
                yield system
        finally:
            member.terminate()
            member.wait(LIMIT_S)


def test_weight_streaming_on_a_group(site: SiteCertificates, tmp_path: Path) -> None:
    """Leader, member, wafers and MemoryX use TLS between each other; the collectives of JAX do not."""
    settings = {
        EXECUTION_VARIABLE: "weight_streaming",
        "NUM_CSX": "2",
        "COMPILE_DIR": str(tmp_path / "artifacts"),
    }
    with running_system(make_directory(tmp_path / "plain-system"), ["--num-csx=2"]) as system:
        plain = train(system, make_directory(tmp_path / "plain"), **settings)
    with encrypted_group(site, make_directory(tmp_path / "tls-system")) as system:
        settings["CS_CERTS"] = str(site.user.directory)
        encrypted = train(system, make_directory(tmp_path / "tls"), **settings)
        assert "not encrypted" in system.log()
    assert_equal(plain, encrypted)
