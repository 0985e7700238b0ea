"""csrun config init: questions, tests of the answers, and the file that is written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from csrun.commands import config_init
from csrun.commands.config_init import init
from csrun.doctor import Finding
from csrun.site import SITE_CONFIG_VARIABLE
from csrun.site.loading import load_site

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def dialog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs the command on a terminal with answers; its tests of them fail for the address `bad`."""

    def examine(*arguments: object, probe: bool) -> list[Finding]:
        loaded = load_site(os.environ)
        level = "fail" if loaded.site.cs_ip == "bad" else "ok"
        return [Finding("site", level, f"{loaded.files[-1].path}: {loaded.site.system_addresses}")]

    monkeypatch.setattr(config_init, "is_terminal", lambda: True)
    monkeypatch.setattr(config_init, "examine", examine)
    monkeypatch.setattr(config_init, "write_text", lambda descriptor, text: print(text, end=""))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(SITE_CONFIG_VARIABLE, "")
    for name in ("CS_IP", "CS_CERTS", "SINGULARITY_IMAGE", "CSRUN_PROGRAM_PYTHON", "CS_SYSTEMS"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, answers: str = "") -> Result:
        return CliRunner().invoke(init, arguments, input=answers)

    return call


def test_answers_are_asked_again_until_they_are_valid_then_tested_and_written(
    dialog: Callable[..., Result], tmp_path: Path
) -> None:
    done = dialog(answers="slrum\nlocal\nhost:x\nhost:9000\n/certs\n\npython3\n/bin/python3\n")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    for problem in ("--launcher: got 'slrum'", "--cs-ip: got 'host:x'", "--python: got 'python3'"):
        assert problem in done.output
    path = tmp_path / "csrun" / "site.yaml"
    assert f"{path}: host:9000" in done.output
    site = load_site({}, path).site
    assert (site.launcher, site.cs_ip, site.certs, site.python) == (
        "local",
        "host:9000",
        "/certs",
        "/bin/python3",
    )
    assert [file.name for file in path.parent.iterdir()] == ["site.yaml"]


def test_a_file_is_replaced_only_with_consent_and_kept(dialog: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "csrun" / "site.yaml"
    path.parent.mkdir()
    path.write_text("qos: mine\n")
    flags = ("--launcher=local", "--cs-ip=a,b", "--certs=", "--container=none", "--python=")
    assert "unchanged" in str(dialog(*flags, answers="n\n").exception)
    assert path.read_text() == "qos: mine\n"
    dialog(*flags, answers="y\n")
    assert load_site({}, path).site.systems == ("a", "b")
    assert path.with_name("site.yaml.bak").read_text() == "qos: mine\n"


def test_answers_that_fail_are_written_only_with_consent(
    dialog: Callable[..., Result], tmp_path: Path
) -> None:
    flags = ("--launcher=local", "--cs-ip=bad", "--certs=", "--container=none", "--python=")
    asked = dialog(*flags, answers="n\n")
    assert "FAIL  site" in asked.output
    assert list((tmp_path / "csrun").iterdir()) == []
    dialog(*flags, "--yes")
    assert load_site({}, tmp_path / "csrun" / "site.yaml").site.cs_ip == "bad"


def test_what_the_administrator_has_set_is_detected_and_not_written(
    dialog: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etc = tmp_path / "etc.yaml"
    etc.write_text("cs_ip: theirs\nlauncher: local\n")
    monkeypatch.setattr("csrun.site.loading.SYSTEM_FILE", etc)
    dialog("--yes", "--certs=/mine")
    text = (tmp_path / "csrun" / "site.yaml").read_text()
    assert [line for line in text.splitlines() if not line.startswith("#")] == ['certs: "/mine"']


def test_without_a_terminal_flags_are_expected(run: Run, tmp_path: Path) -> None:
    result = run("csrun", "config", "init", env={"CS_IP": "here:9000", "XDG_CONFIG_HOME": str(tmp_path)})
    assert result.returncode == 2
    assert "expected --yes, with flags" in result.stderr
    assert "--cs-ip=here:9000" in result.stderr


def test_the_tests_of_the_answers_are_those_of_the_doctor(run: Run, tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    result = run(
        "csrun", "config", "init", "--yes", "--launcher=local", "--cs-ip=127.0.0.1:1", env=environment
    )
    assert result.returncode == 1
    assert "FAIL  CS system        no CS system answers at 127.0.0.1:1" in result.stdout
    assert (
        f"ok    site             {tmp_path}/csrun/site.yaml; jobs run on the launcher local" in result.stdout
    )
    assert "python" in result.stdout
