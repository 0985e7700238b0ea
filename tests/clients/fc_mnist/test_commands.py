"""The commands of the README, as a user types them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from tests.systems import RunningSystem

ROOT = Path(__file__).parents[3]
RUN_PY = ROOT / "models" / "fc_mnist" / "tf" / "run.py"
TASKS = ("--total-nodes=1", "--tasks-per-node=3", "--cpus-per-task=1")
Command = Callable[..., CompletedProcess[str]]


def test_from_validate_to_predict(
    system: RunningSystem, command: Command, run_programs: Callable[..., Any], tmp_path: Path
) -> None:
    cs_ip = f"--cs_ip={system.address}"
    words = (str(RUN_PY), "--model_dir=model_dir")
    program = ("python", *words)
    model_dir = tmp_path / "model_dir"

    def done(launcher: str, *arguments: str) -> str:
        process = command(launcher, *arguments)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    checked = run_programs(
        command,
        ["csrun_cpu"],
        tmp_path,
        {
            "validate": [str(RUN_PY), "--model_dir=validated", "--mode=validate_only"],
            "compile": [*words, "--mode", "train", "--compile_only", cs_ip],
        },
    )
    kernels = checked["validate"]["chief-0"]
    assert re.search(r"fc1 .*fully_connected", kernels)
    assert not list((tmp_path / "validated").glob("cs_*"))
    for name in ("performance.json", "run_summary.json", "params.yaml", "fabric.json"):
        assert (tmp_path / "validated" / name).is_file()

    shown = checked["compile"]["chief-0"]
    assert "Estimated Overall Performance: Samples/s " in shown
    (artifact,) = model_dir.glob("cs_*")
    assert re.fullmatch(r"cs_[0-9a-f]{64}", artifact.name)
    head = (artifact / "compile_report.txt").read_text().splitlines()[:7]
    assert [line[:30].rstrip() for line in head] == [
        "Estimated Overall Performance",
        "-" * 30,
        "Samples/s:",
        "Compute Samples/s:",
        "Transmission Samples/s:",
        "Active PEs:",
        "Compute Utilization:",
    ]
    assert re.search(r'"total_utilization":[0-9.]+', (artifact / "plan.json").read_text())
    deltat = re.search(r'"estimated_deltat":([0-9]+)', (artifact / "deltat_estimate.json").read_text())
    assert deltat is not None
    info = yaml.safe_load((tmp_path / "estimate_pipeline_perf_info.yaml").read_text())
    assert info["target_samples_per_s"] == 850e6 / int(deltat[1])

    # Three tasks train, and read the records once and in their order, as this CPU does.
    programs = {
        "train": [*words, "--mode=train", "--max_steps=120", cs_ip],
        "predict": [*words, "--mode=predict", cs_ip],
    }
    logs = run_programs(command, ["csrun_wse", *TASKS], tmp_path, programs)
    assert set(logs["train"]) == {"chief-0", "worker-0", "worker-1"}
    log = logs["train"]["chief-0"]
    assert "Cached compilation found for this model configuration" in log
    assert re.search(r"global step 100: loss = [0-9.e-]+ \([0-9.]+ steps/sec, [0-9]+ samples/sec\)", log)
    performance = json.loads((model_dir / "performance.json").read_text())
    assert performance["total_samples"] == 120 * 256
    assert performance["delta_t"] == int(deltat[1])
    assert performance["est_samples_per_sec"] == info["target_samples_per_s"]
    assert 0 < performance["fabric_utilization"] < 1
    summary = json.loads((model_dir / "run_summary.json").read_text())
    assert (summary["status"], summary["workers"], summary["last_step"]) == ("completed", 2, 120)
    assert tf.train.latest_checkpoint(str(model_dir)) == str(model_dir / "model.ckpt-120")

    done("csrun_cpu", *program, "--mode=predict")
    predictions = model_dir / "predict"
    on_system, on_cpu = (np.load(predictions / f"predictions_{kind}_0.npz") for kind in ("cs", "tf"))
    assert on_cpu["classes"].shape == (360,)
    assert (on_system["classes"] == on_cpu["classes"]).all()
    np.testing.assert_allclose(on_system["probabilities"], on_cpu["probabilities"], rtol=1e-4, atol=1e-6)
    assert not _undocumented([*model_dir.iterdir(), *artifact.iterdir(), *tmp_path.glob("*.yaml")])


def _undocumented(paths: Iterable[Path]) -> list[str]:
    """Names that the page on files does not have; a letter or a word in capitals there means any."""
    page = (ROOT / "docs/reference/files.md").read_text()
    words = re.findall(r"`([^`\n]+)`", page)
    known = [
        re.escape(re.sub(r"\b[A-Z]+\b|<hash>", "*", word).rstrip("/")).replace(r"\*", ".*") for word in words
    ]
    return [path.name for path in paths if not any(re.fullmatch(name, path.name) for name in known)]
