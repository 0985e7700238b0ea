"""The PyTorch counterpart of `tensorflow_training.py`, with the same arguments."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cerebras_pytorch as cstorch
from cs_runtime.exits import report_errors

BATCH, FEATURES, CLASSES, SAVE_EVERY = 4, 8, 3, 10
STEP_S = float(os.environ.get("STEP_S", "0"))


class Records(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(STEP_S / BATCH * cstorch.distributed.num_streamers())
        generator = torch.Generator().manual_seed(index)
        return torch.randn(FEATURES, generator=generator), index % CLASSES


def input_fn() -> Any:
    records = Records()
    sampler = cstorch.utils.data.DistributedSampler(records, shuffle=True, seed=3, batch_size=BATCH)
    return torch.utils.data.DataLoader(records, batch_size=BATCH, sampler=sampler, drop_last=True)


def find_newest(folder: Path) -> Path | None:
    return max(
        folder.glob("checkpoint_*.mdl"), key=lambda path: int(path.stem.rpartition("_")[2]), default=None
    )


@report_errors()
def main(cs_ip: str, model_dir: str, last_step: str) -> None:
    folder, last = Path(model_dir), int(last_step)
    csx = int(os.environ["NUM_CSX"])
    cluster = cstorch.distributed.ClusterConfig(mgmt_address=cs_ip, num_csx=csx)
    backend = cstorch.backend(
        "CSX", artifact_dir=folder, compile_dir=os.environ["COMPILE_DIR"], cluster_config=cluster
    )
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES))
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    newest = find_newest(folder)
    if newest is not None:
        state = cstorch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = int(state["global_step"])
    if step == last:
        return

    @cstorch.trace
    def train(batch: Any) -> torch.Tensor:
        features, labels = batch
        loss = nn.functional.cross_entropy(compiled(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @cstorch.checkpoint_closure
    def save(step: int) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step}
        cstorch.save(state, folder / f"checkpoint_{step}.mdl")

    loader = cstorch.utils.data.DataLoader(input_fn)
    executor = cstorch.utils.data.DataExecutor(loader, num_steps=last - step, checkpoint_steps=SAVE_EVERY)
    for batch in executor:
        train(batch)
        step += 1
        save(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
