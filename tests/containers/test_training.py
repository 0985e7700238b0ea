"""A whole training in containers: two tasks in the image, the CS system outside of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from tests.systems import running_system

ROOT = Path(__file__).resolve().parents[2]
RUN_PY = ROOT / "models" / "fc_mnist" / "tf" / "run.py"


def test_fc_mnist_trains(
    run: Callable[..., CompletedProcess[str]], frame: tuple[Path, str], python: str, tmp_path: Path
) -> None:
    flags = ("--tasks-per-node=2", "--cpus-per-task=1")
    with running_system(tmp_path) as system:
        program = (
            python,
            str(RUN_PY),
            "--model_dir=model_dir",
            "--mode=train",
            "--max_steps=30",
            f"--cs_ip={system.address}",
        )
        result = run("csrun_wse", *flags, *program, SINGULARITY_IMAGE=str(frame[0]), MOUNT_DIRS=frame[1])
        assert result.returncode == 0, result.stdout + result.stderr
        assert "chief | " in result.stdout
        assert "Loss for final step" in result.stdout
    assert list(tmp_path.glob("model_dir/model.ckpt-30.index"))
