"""A training run in the style of release 1.8, with checkpoints, followed by an evaluation."""

import argparse
import time
from pathlib import Path

import torch
from cerebras_pytorch.experimental.metrics import AccuracyMetric
from cerebras_torch.core import cb_model as cm
from torch import nn
from torch.nn import functional as F

import cerebras_pytorch.experimental as cstorch

FEATURES, CLASSES, BATCH = 20, 5, 16


class Records(torch.utils.data.Dataset):
    """Points whose class is the largest of their first numbers; each takes a while, and one may be broken."""

    def __init__(self, count, delay=0.0, broken=None):
        self.delay, self.broken = delay, broken
        self.x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        time.sleep(self.delay)
        if index == self.broken:
            raise ValueError(f"record {index} is broken")
        return self.x[index], self.x[index, :CLASSES].argmax()


def train_records(count, delay, broken):
    assert cm.use_cs()
    assert cm.num_streamers() == cstorch.distributed.num_streamers()
    records = Records(count, delay, broken)
    sampler = cstorch.utils.data.DistributedSampler(records, batch_size=BATCH, seed=3, drop_last=True)
    return torch.utils.data.DataLoader(records, batch_size=BATCH, sampler=sampler, drop_last=True)


def eval_records(count):
    return torch.utils.data.DataLoader(Records(count), batch_size=BATCH, drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cs_ip")
    parser.add_argument("--checkpoint_path")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--num_csx", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--broken", type=int)
    args = parser.parse_args()
    checkpoint_steps = 10
    cstorch.configure(
        model_dir="model_dir",
        mgmt_address=args.cs_ip,
        checkpoint_steps=checkpoint_steps,
        num_csx=args.num_csx,
        num_workers_per_csx=args.workers,
        execution="weight_streaming" if args.num_csx > 1 else None,
        seed=7,
    )
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, CLASSES))
    compiled_model = cstorch.compile(model, backend="WSE_WS")
    optimizer = cstorch.optim.configure_optimizer(
        optimizer_type="AdamW", params=model.parameters(), learning_rate=0.01
    )
    lr_scheduler = cstorch.optim.configure_lr_scheduler(
        optimizer,
        [
            {"scheduler": "Linear", "initial_learning_rate": 0.01, "end_learning_rate": 0.005, "steps": 20},
            {"scheduler": "Constant", "learning_rate": 0.005},
        ],
    )
    grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic", init_scale=2.0**10)
    global_step = 0
    if args.checkpoint_path:
        state_dict = cstorch.load(args.checkpoint_path)
        model.load_state_dict(state_dict["model"])
        optimizer.load_state_dict(state_dict["optimizer"])
        lr_scheduler.load_state_dict(state_dict["lr_scheduler"])
        grad_scaler.load_state_dict(state_dict["grad_scaler"])
        global_step = state_dict.get("global_step", 0)

    @cstorch.step_closure
    def save_checkpoint(step):
        state_dict = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "grad_scaler": grad_scaler.state_dict(),
            "global_step": step,
        }
        cstorch.save(state_dict, Path("model_dir") / f"checkpoint_{step}.mdl")

    @cstorch.compile_step
    def training_step(batch):
        inputs, targets = batch
        loss = F.cross_entropy(compiled_model(inputs), targets)
        cstorch.amp.optimizer_step(loss, optimizer, grad_scaler, max_gradient_norm=1.0)
        lr_scheduler.step()
        return loss

    @cstorch.step_closure
    def post_training_step(loss):
        print(f"| step {global_step} loss {loss.item()!r}", flush=True)

    dataloader = cstorch.utils.data.DataLoader(
        train_records,
        256,
        args.delay,
        broken=args.broken,
        num_steps=args.steps - global_step,
        initial_step=global_step,
    )
    for batch in dataloader:
        loss = training_step(batch)
        global_step += 1
        post_training_step(loss)
        if global_step % checkpoint_steps == 0:
            save_checkpoint(global_step)

    compiled_model.eval()
    accuracy = AccuracyMetric("accuracy", compute_on_system=True)

    @cstorch.compile_step
    def evaluation_step(batch):
        inputs, targets = batch
        outputs = compiled_model(inputs)
        accuracy(labels=targets.clone(), predictions=outputs.argmax(-1).int())
        return F.cross_entropy(outputs, targets)

    with torch.no_grad():
        for batch in cstorch.utils.data.DataLoader(eval_records, 128, num_epochs=1):
            evaluation_step(batch)
    print(f"| accuracy {float(accuracy)!r}", flush=True)


if __name__ == "__main__":
    main()
