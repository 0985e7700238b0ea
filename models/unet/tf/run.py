"""Compile, train, evaluate and predict with U-Net, on a CS system (--cs_ip) or on this CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[3]))  # after the folder of this file

from params import Params

from estimator import report_errors
from models.common.tf.program import Program

PROGRAM = Program(
    description=__doc__,
    folder=Path(__file__).resolve().parent,
    params_file="configs/params_unet_tiny.yaml",
    params=Params,
    data_help="folder with train/ and validation/ of PNG images and masks; without it, generated shapes",
)


@report_errors()
def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    PROGRAM.run(argv)


if __name__ == "__main__":
    main()
