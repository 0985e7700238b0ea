"""Compile, train and evaluate FC-MNIST, on a CS system (--cs_ip) or on this CPU."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[3]))  # after the folder of this file

from cstorch.runner import run
from models.fc_mnist.pytorch.data import eval_dataloader, train_dataloader
from models.fc_mnist.pytorch.model import FcMnist

if __name__ == "__main__":
    run(FcMnist, train_dataloader, eval_dataloader)
