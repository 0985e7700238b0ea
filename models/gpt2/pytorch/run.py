"""Train and evaluate GPT-2 on bytes of Python's own sources; the program has its own training loop."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[3]))  # after the folder of this file

import torch
from torch.nn import functional

import cerebras_pytorch.experimental as cstorch
from cs_toolkit.loader import load_mapping
from cstorch.checkpoints import load_newest
from models.gpt2.pytorch.data import eval_dataloader, train_dataloader
from models.gpt2.pytorch.model import GPT2

FOLDER = Path(__file__).resolve().parent


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--mode", choices=("train", "eval", "train_and_eval"), required=True)
    parser.add_argument("-p", "--params", type=Path, default=FOLDER / "configs/params_gpt2_tiny.yaml")
    parser.add_argument("-o", "--model_dir", type=Path, default=FOLDER / "model_dir")
    parser.add_argument("--cs_ip", help="IP:PORT of the CS system")
    parser.add_argument(
        "--max_steps", type=int, help="train to this step; default: that of the parameter file"
    )
    parser.add_argument("--checkpoint_path", type=Path, help="default: the newest one in the model_dir")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--compile_only", action="store_true")
    only.add_argument("--validate_only", action="store_true")
    return parser.parse_args(argv)


def load_checkpoint(args: argparse.Namespace) -> tuple[Path, dict[str, Any]] | None:
    """Load the given checkpoint, or the newest intact one of the model_dir if there is one."""
    if args.checkpoint_path:
        return args.checkpoint_path, cstorch.load(args.checkpoint_path)
    found = args.model_dir.glob("checkpoint_*.mdl")
    newest_first = sorted(found, key=lambda path: int(path.stem.removeprefix("checkpoint_")), reverse=True)
    return load_newest(newest_first)


class Training:
    """A model with its optimizer, learning rate and loss scale."""

    def __init__(self, model: torch.nn.Module, params: dict[str, Any]) -> None:
        settings = params["optimizer"]
        self.model = model
        self.optimizer = cstorch.optim.AdamW(
            cstorch.optim.configure_param_groups(model, settings),
            lr=1.0,  # set by the schedule
            betas=(settings["beta1"], settings["beta2"]),
        )
        self.schedule = cstorch.optim.configure_lr_scheduler(self.optimizer, settings["learning_rate"])
        self.scaler = cstorch.amp.GradScaler(settings["loss_scaling_factor"])
        self.max_gradient_norm = settings["max_gradient_norm"]

    def step(self, batch: Any) -> torch.Tensor:
        """Run one training step: loss, gradients, update, learning rate."""
        loss = language_loss(self.model, batch)
        cstorch.amp.optimizer_step(
            loss, self.optimizer, self.scaler, max_gradient_norm=self.max_gradient_norm
        )
        self.schedule.step()
        return loss

    def _parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "lr_scheduler": self.schedule,
            "grad_scaler": self.scaler,
        }

    def state_dict(self, step: int) -> dict[str, Any]:
        """Return the state from which training resumes."""
        return {**{name: part.state_dict() for name, part in self._parts().items()}, "global_step": step}

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """Load a state; return its step."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        return int(state["global_step"])


def language_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean cross entropy of the following tokens."""
    ids, following = batch
    logits = model(ids)
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def train(model: torch.nn.Module, args: argparse.Namespace, params: dict[str, Any]) -> None:
    """Train from the newest checkpoint, or from the start, to `max_steps`."""
    training, run = Training(model, params), params["runconfig"]
    checkpoint = load_checkpoint(args)
    first = training.load_state_dict(checkpoint[1]) if checkpoint else 0
    last = args.max_steps or run["max_steps"]
    if checkpoint and first >= last:
        print(f"{checkpoint[0]} is of step {first}, and max_steps is {last}: nothing to train")
        return
    train_step = cstorch.compile_step(training.step)

    @cstorch.step_closure
    def show(step: int, loss: torch.Tensor) -> None:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)

    @cstorch.step_closure
    def save(step: int) -> None:
        cstorch.save(training.state_dict(step), args.model_dir / f"checkpoint_{step}.mdl")

    batches = cstorch.utils.data.DataLoader(train_dataloader, params, num_steps=last - first)
    for step, batch in enumerate(batches, start=first + 1):
        loss = train_step(batch)
        if (step - first) % run["log_steps"] == 0 or step == last:
            show(step, loss)
        if (step - first) % run["checkpoint_steps"] == 0 or step == last:
            save(step)


def evaluate(model: torch.nn.Module, args: argparse.Namespace, params: dict[str, Any]) -> None:
    """Print the loss and the perplexity over the held-out text."""
    checkpoint = load_checkpoint(args) if args.mode == "eval" else None
    if checkpoint:
        model.load_state_dict(checkpoint[1]["model"])
    model.eval()
    losses: list[float] = []

    @cstorch.compile_step
    def eval_step(batch: Any) -> torch.Tensor:
        return language_loss(model, batch)

    @cstorch.step_closure
    def note(loss: torch.Tensor) -> None:
        losses.append(loss.item())

    steps = params["runconfig"]["eval_steps"]
    with torch.no_grad():
        for batch in cstorch.utils.data.DataLoader(eval_dataloader, params, max_steps=steps):
            note(eval_step(batch))
    if losses:
        mean = sum(losses) / len(losses)
        print(f"eval: loss {mean:.4f}, perplexity {math.exp(mean):.2f} per byte", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    args = parse_arguments(argv)
    params = load_mapping(args.params)
    if "half_dtype" in params["runconfig"]:
        cstorch.amp.set_half_dtype(params["runconfig"]["half_dtype"])
    cstorch.configure(
        model_dir=args.model_dir,
        mgmt_address=args.cs_ip,
        compile_only=args.compile_only,
        validate_only=args.validate_only,
        checkpoint_steps=params["runconfig"]["checkpoint_steps"],
        seed=params["runconfig"]["seed"],
    )
    model = cstorch.compile(GPT2(params["model"]))
    if args.mode != "eval":
        train(model, args, params)
    if args.mode != "train":
        evaluate(model, args, params)


if __name__ == "__main__":
    main()
