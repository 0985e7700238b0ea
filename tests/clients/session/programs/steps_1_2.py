"""A training in the manner of release 1.2: Python counts by `cm.get_run_step()`, and decides by it."""

import argparse
import logging
import os

import cerebras.framework.torch as cbtorch
import cerebras.framework.torch.core.cb_model as cm
import torch
from cerebras.framework.torch import amp

TOTAL, LOG_STEPS, CHECKPOINT_STEPS = 7, 2, 3

parser = argparse.ArgumentParser()
parser.add_argument("--cs_ip", required=True)
parser.add_argument("--model_dir", default="model_dir")
parser.add_argument("--checkpoint_path")
parser.add_argument("--fails_at", type=int)
args = parser.parse_args()

cbtorch.initialize(cs_ip=args.cs_ip, service_workdir=args.model_dir, use_appliance_data=True)
logging.basicConfig(
    level="INFO" if cm.is_master_ordinal() else "ERROR", format="%(levelname)s:   %(message)s"
)


class Schedule(torch.optim.lr_scheduler.LambdaLR):
    """PyTorch's bookkeeping; the rates are those of its twin on the system."""

    def __init__(self, optimizer, first, last, steps):
        self.decay_steps = steps
        self.twin = cbtorch.optim.lr_scheduler.Polynomial(optimizer, first, last, steps, 1.0, False, False)
        super().__init__(optimizer._optimizer, lambda step: first)

    def step(self, *given):
        self.last_epoch = 0 if self.last_epoch == -1 else cm.get_run_step()


class Sequence(torch.optim.lr_scheduler.SequentialLR):
    def step(self):
        self.last_epoch = cm.get_run_step()
        self._schedulers[self.last_epoch >= self._milestones[0]].step()


class Clipper:
    def __init__(self, norm):
        # The scaler clips itself where it was made with a norm.
        self.norm = None if amp.get_init_params().get("max_gradient_norm") else norm

    def __call__(self, parameters):
        if self.norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.norm)


class Runner:
    def __init__(self):
        torch.manual_seed(1)
        self.model = cbtorch.module(torch.nn.Linear(6, 4), cm.device())
        self.optimizer = cbtorch.optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        parts = [Schedule(self.optimizer, 0.0, 0.2, 4), Schedule(self.optimizer, 0.2, 0.0, 8)]
        self.schedule = Sequence(self.optimizer._optimizer, parts, [4])
        assert amp.state_dict() == {}
        self.scaler = amp.GradScaler(loss_scale="dynamic", init_scale=2.0**10, mixed_precision=True)
        self.optimizer.gradient_clipper = Clipper(0.5)
        self.initial_step = self.global_step = 0

    @property
    def run_step(self):
        return self.global_step - self.initial_step

    def load(self, path):
        held = torch.load(path)
        self.model.load_state_dict(held["model"])
        self.optimizer.load_state_dict(held["optimizer"])
        amp.load_state_dict(held["amp"])
        self.initial_step = self.global_step = held["global_step"]

    def train(self, loader):
        loader, total = cbtorch.dataloader(loader), TOTAL - self.global_step
        with cbtorch.Session(loader, "train"):
            cm.set_run_config(total, CHECKPOINT_STEPS, LOG_STEPS)
            self.model.train()
            batches = 0
            for x, y in loader:
                batches += 1
                self.optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model(x.float()), y.long())
                self.scaler(loss).backward()
                self.optimizer.step()
                self.schedule.step()
                self.global_step += cm.get_run_step() - self.run_step
                if self.run_step % LOG_STEPS == 0 or self.run_step == total:
                    self.log(loss, self.global_step)
                if self.run_step % CHECKPOINT_STEPS == 0 or self.run_step == total:
                    self.save(self.global_step)
                if self.run_step >= total:
                    break
            assert batches > 0, "there were no batches"
            cm.mark_step()
        assert self.global_step == TOTAL
        logging.info(f"trained {TOTAL} steps")

    @cm.step_closure
    def log(self, loss, step):
        if step == args.fails_at:
            raise RuntimeError(f"the program does not like step {step}")
        cm.print_update(cm.device(), step, loss.item())

    @cm.step_closure
    def save(self, step):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state.update(amp=amp.state_dict(), global_step=step)

        def converted(state):
            state["optimizer"] = self.optimizer.convert_state_dict_for_checkpoint(state["optimizer"])
            return state

        path = os.path.join(args.model_dir, f"checkpoint_{step}.mdl")
        cm.save(state, path, master_only=True, post_transfer_callback=converted)


def get_loader():
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(3)).half()
    rows = [i for i in range(96) if (i // 8) % cm.num_streamers() == cm.get_streaming_rank()]
    rows = rows if cm.is_streamer() else range(96)
    return torch.utils.data.DataLoader([(x[i], x[i, :4].argmax()) for i in rows], 8, drop_last=True)


runner = Runner()
if args.checkpoint_path:
    runner.load(args.checkpoint_path)
runner.train(get_loader())
