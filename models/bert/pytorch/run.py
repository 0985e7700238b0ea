"""Compile, train and evaluate BERT, on a CS system (--cs_ip) or on this CPU."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[3]))  # after the folder of this file

from cstorch.runner import run
from models.bert.pytorch.data import eval_dataloader, train_dataloader
from models.bert.pytorch.model import Bert

if __name__ == "__main__":
    run(Bert, train_dataloader, eval_dataloader)
