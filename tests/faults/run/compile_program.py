"""A user's program that compiles a small model into the directory of its argument."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tensorflow_program import input_fn, linear_classifier

from estimator import CerebrasEstimator, CSRunConfig, report_errors


@report_errors()
def main(model_dir: str) -> None:
    CerebrasEstimator(linear_classifier(), model_dir, config=CSRunConfig(tf_random_seed=1)).compile(input_fn)


if __name__ == "__main__":
    main(*sys.argv[1:])
