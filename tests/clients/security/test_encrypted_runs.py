"""Whole training runs over mutual TLS compute the bits of those without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import cerebras_pytorch.experimental as cstorch
from tests.certificates import SiteCertificates
from tests.faults.run.training_jobs import checkpoint, finish, launch
from tests.processes import wait_until
from tests.systems import RunningSystem, running_system

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "tests" / "clients" / "cstorch" / "programs" / "digits.py"
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteCertificates:
    return SiteCertificates(tmp_path_factory.mktemp("site"))


def make_directory(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_pipelined_run_with_workers(site: SiteCertificates, tmp_path: Path) -> None:
    results = []
    for name, flags, environment in (
        ("plain", [], {}),
        ("tls", [f"--certs={site.system.directory}"], {"CS_CERTS": str(site.user.directory)}),
    ):
        with running_system(make_directory(tmp_path / f"{name}-system"), flags) as system:
            folder = make_directory(tmp_path / name)
            code, output = finish(launch(system, folder, 30, tasks=3, **environment))
            assert code == 0, output
            results.append(checkpoint(folder))
            assert ("TLS with the certificate" in system.log()) == (name == "tls")
    plain, encrypted = results
    assert plain
    assert plain.keys() == encrypted.keys()
    assert all((plain[key] == encrypted[key]).all() for key in plain)


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


def train_digits(system: RunningSystem, folder: Path, **environment: str) -> dict[str, torch.Tensor]:
    command = [str(ROOT / "bin" / "csrun_cpu"), "--alloc-node=False", "python", str(DIGITS)]
    flags = ["--steps=10", "--num_csx=2", f"--cs_ip={system.address}"]
    done = subprocess.run(
        [*command, *flags],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + system.log()
    saved: Any = cstorch.load(folder / "model_dir" / "checkpoint_10.mdl")
    return {name: torch.as_tensor(value) for name, value in saved["model"].items()}


def test_weight_streaming_on_a_group(site: SiteCertificates, tmp_path: Path) -> None:
    """Leader, member, wafers and MemoryX use TLS between each other; the collectives of JAX do not."""
    with running_system(make_directory(tmp_path / "plain-system"), ["--num-csx=2"]) as system:
        plain = train_digits(system, make_directory(tmp_path / "plain"))
    with encrypted_group(site, make_directory(tmp_path / "tls-system")) as system:
        encrypted = train_digits(system, make_directory(tmp_path / "tls"), CS_CERTS=str(site.user.directory))
        assert "not encrypted" in system.log()
    assert plain
    assert plain.keys() == encrypted.keys()
    assert all(torch.equal(plain[name], encrypted[name]) for name in plain)
