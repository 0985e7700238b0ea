"""Paths of training steps as CIRH texts."""

from __future__ import annotations

from pathlib import Path

MLP_TRAIN = Path(__file__).with_name("mlp_train.mlir")
"""Dense layers with dropout, a cross entropy and Adam."""

LINEAR = Path(__file__).with_name("linear.mlir")
"""Least squares by gradient descent."""
