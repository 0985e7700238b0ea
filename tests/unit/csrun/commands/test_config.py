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
        "variables": ["GRES_RESOURCE"],
    }
    assert shown["settings"]["qos"]["origin"] == "default"
    assert shown["notes"] == [f"{path}:1: mount_dirs has no effect with 'container: none'"]


def test_show_without_a_file_lists_the_searched_places(run: Run, tmp_path: Path) -> None:
    shown = run("csrun", "config", "show", env={"XDG_CONFIG_HOME": str(tmp_path)}).stdout
    assert shown.startswith(f"site file: none (searched: {tmp_path}/csrun/site.yaml, /etc/csrun/site.yaml, ")


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
    assert run("csrun", "--help").returncode == 0
    for words in ([], ["confg"], ["config"], ["config", "show", "--jsn"], ["config", "check", "a", "b"]):
        result = run("csrun", *words)
        assert result.returncode == 2, words
        assert result.stderr.startswith("csrun: ")
