"""The PyTorch counterpart of `counting_program.py`, with the same arguments.

SHARDING in the environment says how a worker finds its share: `sampler`, by DistributedSampler; `hand`, by a
sampler of the program that asks for it; `iterable`, by a dataset without indices that asks for it; `import`,
from TF_CONFIG when the program starts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cerebras_pytorch as cstorch
from cs_runtime.exits import report_errors
from cstorch.distributed import get_streaming_rank, num_streamers

BATCH = 4
SHARDING = os.environ.get("SHARDING", "sampler")
LENGTH = 4000
ROLE = os.environ.get("CSRUN_ROLE", "") + os.environ.get("CSRUN_TASK_INDEX", "")
TASK = json.loads(os.environ.get("TF_CONFIG", "{}"))


def share() -> tuple[int, int]:
    if SHARDING == "import":
        return len(TASK["cluster"]["worker"]), TASK["task"]["index"]
    return num_streamers(), get_streaming_rank()


class Records(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.environ.get("LATE") == ROLE:
            time.sleep(0.01)
        return torch.tensor([float(index)])


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        count, index = share()
        return (torch.tensor([float(number)]) for number in range(index, LENGTH, count))


class EveryNth(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        count, index = share()
        return iter(range(index, LENGTH, count))


def input_fn() -> Any:
    if SHARDING == "iterable":
        return torch.utils.data.DataLoader(Stream(), batch_size=BATCH, drop_last=True, num_workers=1)
    records = Records()
    sampler: Any = EveryNth()
    if SHARDING == "sampler":
        sampler = cstorch.utils.data.DistributedSampler(records, shuffle=True, seed=3, batch_size=BATCH)
    return torch.utils.data.DataLoader(records, batch_size=BATCH, sampler=sampler, drop_last=True)


@report_errors()
def main(cs_ip: str, model_dir: str, max_steps: str) -> None:
    last = int(max_steps)
    backend = cstorch.backend(
        "CSX", artifact_dir=model_dir, cluster_config=cstorch.distributed.ClusterConfig(mgmt_address=cs_ip)
    )
    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=1e-6)
    folder = Path(model_dir)
    newest = folder / "newest.mdl"
    if newest.exists():
        state = cstorch.load(newest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    first = int(json.loads((folder / "step.json").read_text())) if newest.exists() else 0

    @cstorch.trace
    def step(records: torch.Tensor) -> Any:
        loss = compiled(records).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, records

    number = first

    @cstorch.step_closure
    def count(records: torch.Tensor) -> None:
        line = {"step": number, "records": [int(value) for value in records.flatten()]}
        with (folder.parent / "records.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    loader = cstorch.utils.data.DataLoader(input_fn)
    executor = cstorch.utils.data.DataExecutor(loader, num_steps=last - first, checkpoint_steps=last - first)
    for batch in executor:
        _, records = step(batch)
        count(records)
        number += 1
    cstorch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, newest)
    (folder / "step.json").write_text(json.dumps(number))


if __name__ == "__main__":
    main(*sys.argv[1:])
