"""csrun config as a user runs it, and --site-config of the launchers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cs_toolkit import config_file

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_show_prints_the_source_of_every_value(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "my site.yaml"
    path.write_text("def_nodes: 7\ncs_ip: 192.0.2.7\n")
    result = run("csrun", "config", "show", "--site-config", str(path), env={"DEF_CPUS": "3"})
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert f"site file: {path}" in result.stdout
    assert ["def_nodes", "7", *f"{path}:1".split()] in lines
    assert ["def_cpus_per_task", "3", "environment", "DEF_CPUS"] in lines
    assert ["partition", '""', "default"] in lines


def test_show_prints_the_layer_of_every_value_and_what_it_overrides(run: Run, tmp_path: Path) -> None:
    own, project = tmp_path / "config" / "csrun" / "site.yaml", tmp_path / "csrun.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("def_nodes: 7\nlocked: [qos]\n")
    project.write_text("def_nodes: 3\n")
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "DEF_NODES": "2"}
    shown = run("csrun", "config", "show", env=environment).stdout.splitlines()
    assert [line for line in shown if line.startswith("site file")] == [
        f"site file: {own} (user)",
        f"site file: {project} (project)",
    ]
    at = next(number for number, line in enumerate(shown) if line.startswith("def_nodes"))
    assert [line.split() for line in shown[at : at + 3]] == [
        ["def_nodes", "2", "environment", "DEF_NODES"],
        ["3", "overridden:", f"{project}:1"],
        ["7", "overridden:", f"{own}:1"],
    ]
    assert ["qos", '""', "default,", "locked", "by", f"{own}:2"] in [line.split() for line in shown]
    data = json.loads(run("csrun", "config", "show", "--json", env=environment).stdout)
    assert [(one["layer"], one["exists"]) for one in data["site_files"]][2:] == [
        ("user", True),
        ("project", True),
    ]
    assert data["settings"]["def_nodes"]["overridden"] == [
        {"value": 3, "origin": f"{project}:1", "layer": "project"},
        {"value": 7, "origin": f"{own}:1", "layer": "user"},
    ]
    assert data["settings"]["qos"]["locked"] == f"{own}:2"


def test_trust_accepts_a_projects_file_until_it_changes(run: Run, tmp_path: Path) -> None:
    project = tmp_path / "csrun.yaml"
    project.write_text("def_nodes: 3\npython: /elsewhere/python\n")
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    refused = run("csrun_wse", "--dry-run", "true", env=environment)
    assert refused.returncode == 2
    assert f"{project}:2: a project's file sets python, with which" in refused.stderr
    accepted = run("csrun", "config", "trust", env=environment)
    assert accepted.stdout == f"{project}: accepted until it changes\n  python: /elsewhere/python\n"
    assert "/elsewhere" in run("csrun", "config", "show", env=environment).stdout
    assert run("csrun", "config", "trust", "--revoke", env=environment).returncode == 0
    assert run("csrun", "config", "show", env=environment).returncode == 2
    project.unlink()
    assert "no csrun.yaml here or above" in run("csrun", "config", "trust", env=environment).stderr


LOCKED = """\
launcher: local
max_restarts: 2
mount_dirs: [/]
partition: mine
cs_ip: here
container: charliecloud
container_image: /i
locked: [launcher, max_restarts, mount_dirs, partition, slurm_options, cs_ip]
"""


@pytest.mark.parametrize(
    ("arguments", "key", "flag"),
    [
        (["csrun_wse", "--launcher=slurm", "true"], "launcher", "--launcher: got slurm"),
        (["csrun_wse", "--use-sbatch", "true"], "launcher", "--launcher: got slurm"),
        (["csrun_wse", "--max-restarts=9", "true"], "max_restarts", "--max-restarts: got 9"),
        (["csrun_wse", "--mount-dirs=/,/tmp", "true"], "mount_dirs", "--mount-dirs: got /tmp"),
        (["csrun_cpu", "--mount-dirs=/tmp", "true"], "mount_dirs", "--mount-dirs: got /tmp"),
        (["csrun_wse", "--partition=x", "true"], "partition", "--partition: got x"),
        (["csrun_wse", "--slurm=nice=1", "true"], "slurm_options", "--slurm: got nice=1"),
        (["csrun_wse", "true", "--cs_ip=far"], "cs_ip", "--cs_ip: got far"),
        (["csrun_cpu", "true", "--cs_ip", "far"], "cs_ip", "--cs_ip: got far"),
    ],
)
def test_a_flag_may_not_change_a_locked_setting(
    run: Run, tmp_path: Path, arguments: list[str], key: str, flag: str
) -> None:
    (tmp_path / "site.yaml").write_text(LOCKED)
    environment = {"CSRUN_SITE_CONFIG": str(tmp_path / "site.yaml")}
    program, *others = arguments
    result = run(program, "--dry-run", *others, env=environment)
    assert result.returncode == 2
    assert flag in result.stderr
    assert f"{tmp_path}/site.yaml:8 locks {key}, which is" in result.stderr


def test_a_flag_may_repeat_a_locked_value(run: Run, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(LOCKED.replace("charliecloud", "none"))
    same = ["--launcher=local", "--max-restarts=2", "--mount-dirs=/", "--partition=mine"]
    result = run("csrun_wse", "--site-config=site.yaml", "--dry-run", *same, "true", "--cs_ip=here")
    assert result.returncode == 0, result.stderr


def test_show_as_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("mount_dirs: [/data]\ngres_resource: gres:cs:1\n")
    result = run("csrun", "--site-config", str(path), "config", "show", "--json")
    shown = json.loads(result.stdout)
    assert shown["site_file"] == str(path)
    assert shown["launcher"] == "slurm"
    assert shown["settings"]["gres_resource"] == {
        "value": "cs:1",
        "origin": f"{path}:2",
        "layer": "named",
        "overridden": [],
        "locked": None,
        "variables": ["GRES_RESOURCE"],
    }
    assert shown["settings"]["qos"]["origin"] == "default"
    assert shown["notes"] == [f"{path}:1: mount_dirs has no effect with 'container: none'"]


def test_show_without_a_file_lists_the_searched_places(run: Run, tmp_path: Path) -> None:
    shown = run("csrun", "config", "show", env={"XDG_CONFIG_HOME": str(tmp_path)}).stdout
    assert shown.startswith("site file: none (searched: ")
    assert f"/etc/csrun/site.yaml, {tmp_path}/csrun/site.yaml)\n" in shown


def test_check_prints_each_error_on_its_own_line_that_editors_understand(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("def_nodes: 0\nnodes: 3\ncontainer: none\n")
    result = run("csrun", "config", "check", "bad.yaml", env={"DEF_NODES": "x"})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        "bad.yaml:1: 'def_nodes' is 0: Input should be greater than or equal to 1",
        "bad.yaml:2: unknown key 'nodes'; did you mean 'def_nodes'?",
    ]


def test_check_of_a_right_file_and_of_what_counts_here(run: Run, tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("def_nodes: 3\n")
    result = run("csrun", "config", "check", "good.yaml", env={"DEF_NODES": "x"})
    assert (result.returncode, result.stdout) == (0, "good.yaml: no errors\n")
    result = run("csrun", "config", "check", env={"DEF_NODES": "x", "CSRUN_SITE_CONFIG": "good.yaml"})
    assert result.returncode == 2
    assert "DEF_NODES is 'x'" in result.stderr


def test_the_schema_for_editors_is_current_and_the_example_names_it(run: Run) -> None:
    schema = config_file("site.schema.json")
    assert run("csrun", "config", "schema").stdout == schema.read_text(encoding="utf-8"), (
        "run: bin/csrun config schema > configs/site.schema.json"
    )
    first = config_file("site.example.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema={schema.name}"


@pytest.mark.parametrize("program", ["csrun_cpu", "csrun_wse"])
def test_the_launchers_read_the_file_that_the_flag_names(run: Run, tmp_path: Path, program: str) -> None:
    (tmp_path / "site.yaml").write_text("def_nodes: 7\ndef_tasks_per_node: 3\ndef_cpus_per_task: 5\n")
    for words in (["--site-config", "site.yaml"], ["--site_config=site.yaml"]):
        if program == "csrun_cpu":
            assert run(program, *words, "--def_nodes").stdout == "7\n"
            assert run(program, *words, "--def_tasks").stdout == "3\n"
        else:
            defaults = "--total-nodes=7 --tasks-per-node=3 --cpus-per-task=5"
            assert defaults in run(program, *words, "--help").stdout


def test_a_flag_of_the_users_program_is_not_ours(run: Run) -> None:
    result = run("csrun_cpu", "--logging", "False", "echo", "--site-config", "/nowhere")
    assert (result.returncode, result.stdout) == (0, "--site-config /nowhere\n")


def test_the_program_finds_the_same_site(run: Run, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("def_nodes: 7\n")
    program = str(Path(__file__).resolve().parents[4] / "bin" / "csrun_cpu")
    assert run("csrun_cpu", "--site-config=site.yaml", program, "--def_nodes").stdout == "7\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--site-config"], "--site-config: no value given"),
        (["--site-config=", "true"], "cannot be read"),
        (["--site-config=/no/such/file", "true"], "/no/such/file: no such file"),
    ],
)
def test_a_wrong_site_config_is_named(run: Run, words: list[str], message: str) -> None:
    result = run("csrun_cpu", *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_csrun_without_arguments_or_with_wrong_ones(run: Run) -> None:
    for command in (["csrun"], ["csrun", "config"]):
        alone = run(*command)
        assert (alone.returncode, alone.stderr) == (2, run(*command, "--help").stdout)
    for words in (["confg"], ["config", "show", "--jsn"], ["config", "check", "a", "b"]):
        result = run("csrun", *words)
        assert result.returncode == 2, words
        assert result.stderr.startswith("csrun: ")
