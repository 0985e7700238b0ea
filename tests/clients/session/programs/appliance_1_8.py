"""A program in the manner of release 1.8: it records one step, compiles it, and receives its outputs.

python appliance_1_8.py CSX|CPU --mode train|eval [--mgmt_address IP:PORT]
"""

import argparse
import glob
import json
import os
from contextlib import ExitStack

import cerebras_pytorch as cbtorch
import torch
from cerebras_appliance import DEFAULT_COMPILE_DIR
from cerebras_appliance.appliance_manager import TensorGroup
from cerebras_appliance.CSConfig import CSConfig
from cerebras_appliance.pb.workflow.appliance.common.common_config_pb2 import DebugArgs, ExecutionStrategy
from cerebras_pytorch import amp
from cerebras_pytorch.core import cb_model as cm
from cerebras_pytorch.saver.pt_h5_saver import CerebrasStateDict, PyTorchH5Saver

parser = argparse.ArgumentParser()
parser.add_argument("target_device", choices=("CSX", "CPU"))
parser.add_argument("--mode", default="train")
parser.add_argument("--mgmt_address")
parser.add_argument("--credentials_path")
parser.add_argument("--model_dir", default="model_dir")
parser.add_argument("--checkpoint_path")
parser.add_argument("--is_pretrained_checkpoint", action="store_true")
parser.add_argument("--max_steps", type=int, default=7)
parser.add_argument("--num_workers_per_csx", type=int, default=0)
parser.add_argument("--compile_only", action="store_true")
parser.add_argument("--validate_only", action="store_true")
parser.add_argument("--fails_at", type=int)
parser.add_argument("--prunes", nargs="*", default=[], help="weights, of which the smaller half is pruned")
parser.add_argument("--marks", nargs="*", help="weights that are marked as sparse; those that are pruned")
args = parser.parse_args()
CHECKPOINT_STEPS, EVAL_STEPS = 3, 4


def make_loader(params):
    """The input function that each worker calls."""
    x = torch.randn(params["rows"], 6, generator=torch.Generator().manual_seed(3))
    rows = [
        i
        for i in range(len(x))
        if (i // 8) % cm.num_streamers() == cm.get_streaming_rank() or not cm.is_streamer()
    ]
    return torch.utils.data.DataLoader([(x[i], x[i, :4].argmax()) for i in rows], 8, drop_last=True)


def larger_half(weight):
    """Return the mask of the elements that stay."""
    size = torch.as_tensor(weight).abs()
    return size > size.median()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)

    def forward(self, batch):
        logits = self.out(torch.relu(self.hidden(batch[0])))
        if not self.training:
            accuracy(logits.argmax(-1), batch[1])
        return torch.nn.functional.cross_entropy(logits, batch[1])


class Accuracy:
    """Counts on the system; the count returns with each step."""

    def __init__(self):
        self.name, self.value = "eval/accuracy", None
        device = cm.device() if cm.use_cs() else "cpu"
        self.right, self.total = torch.tensor(0.0).to(device), torch.tensor(0.0, device=device)

    def state(self):
        return {"right": self.right, "total": self.total}

    def __call__(self, predictions, labels):
        cbtorch.state().track_object(self.state())
        cm.set_metric_state_names(self.state(), self.name)
        self.right += (predictions == labels).float().sum()
        self.total += torch.tensor(float(labels.numel()), dtype=torch.float32, device=labels.device)
        ratio = self.right / self.total
        if not cm.use_cs():
            self.value = float(ratio)
            return

        def receive():
            self.value = float(cbtorch.state().get_activation_for_output(ratio))

        cbtorch.state().track_object({"metric": {self.name: [[ratio], {}]}}, force=True)
        cbtorch.state().register_activation_callback(receive)


class Schedule(torch.optim.lr_scheduler.LambdaLR):
    """PyTorch's bookkeeping; the rates are those of its twin on the system."""

    def __init__(self, optimizer, first, last, steps):
        on_cs = cm.use_cs()
        if on_cs:
            cbtorch.optim.lr_scheduler.Polynomial(optimizer, first, last, steps, 1.0, False, False)
        super().__init__(
            optimizer._optimizer if on_cs else optimizer,
            lambda step: (
                (first + (last - first) * min(step / steps, 1)) / optimizer.param_groups[0]["initial_lr"]
            ),
        )

    def step(self, *given):
        if not cm.use_cs():
            super().step(*given)
        else:
            self.last_epoch = 0 if self.last_epoch == -1 else cm.get_run_step()


class Runner:
    """A loop that knows the system only by what it overrides."""

    trains = args.mode == "train"

    def __init__(self):
        torch.manual_seed(1)
        self.model = cbtorch.module(Net(), cm.device()) if cm.use_cs() else Net()
        if self.trains:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            if cm.use_cs():
                self.optimizer = cbtorch.optimizer(self.optimizer)
            self.schedule = Schedule(self.optimizer, 0.2, 0.02, 10)
        self.first_step = self.step = 0
        self.losses, self.seen = [], 0

    def state(self):
        found = {"model": self.model.state_dict(), "version": 0.2}
        if self.trains:
            found.update(optimizer=self.optimizer.state_dict(), lr_scheduler=self.schedule.state_dict())
            found["lr_scheduler"].pop("lr_lambdas", None)
        return found

    def load(self):
        if args.checkpoint_path:
            held = cbtorch.load(args.checkpoint_path)
            self.model.load_state_dict(held["model"])

    def run(self):
        self.load()
        self.prune()
        loader = make_loader({"rows": 48 if self.trains else 96})
        self.total = (args.max_steps - self.step) if self.trains else EVAL_STEPS
        with ExitStack() as self.cleanup:
            self.model.train(self.trains)
            for _ in range(1 + self.total // len(loader)):
                if self.epoch(self.wrap(loader)):
                    break
        print("LOSSES", json.dumps(self.losses))
        if not self.trains:
            print("ACCURACY", json.dumps(accuracy.value))

    def prune(self):
        self.masks = {
            p: larger_half(p.detach()) for name, p in self.model.named_parameters() if name in args.prunes
        }
        for p, mask in self.masks.items():
            p.data.mul_(mask)
            p.register_hook(mask.mul)

    def wrap(self, loader):
        return loader

    def epoch(self, loader):
        for batch in loader:
            with torch.set_grad_enabled(self.trains):
                loss = self.forward(batch)
            if self.trains:
                self.update(loss)
            self.end_batch(loss)
            if self.seen == self.total:
                return True
        return False

    def forward(self, batch):
        return self.model(batch)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()

    def end_batch(self, loss):
        self.seen += 1
        self.step = self.first_step + self.seen
        self.log(loss, self.step)
        if self.trains and (self.seen == self.total or self.seen % CHECKPOINT_STEPS == 0):
            self.save(self.step)

    @cm.step_closure
    def log(self, loss, step):
        if step == args.fails_at:
            raise RuntimeError(f"the program does not like step {step}")
        self.losses.append((step, loss.item()))

    def save(self, step):
        os.makedirs(args.model_dir, exist_ok=True)
        cbtorch.save({**self.state(), "global_step": step}, f"{args.model_dir}/checkpoint_{step}.mdl")


def group_tensors(groups, tensors):
    """Yield a weight with its momentum, and the closure that prunes both."""
    named = {tensor.fw_name: tensor for tensor in tensors}
    for name, of_optimizer in groups.items():

        def prune(together):
            mask = larger_half(together[0].tensor)
            for tensor in together:
                tensor.tensor[~mask.numpy()] = float("nan")

        yield TensorGroup([named.pop(name), named.pop(of_optimizer)], prune)
    for tensor in named.values():
        yield TensorGroup([tensor])


class ApplianceRunner(Runner):
    """The body of the loop is recorded for the first batch; then the outputs come."""

    def __init__(self):
        super().__init__()
        os.makedirs(args.model_dir, exist_ok=True)
        only_compile = args.compile_only or args.validate_only
        if not only_compile:
            self.save_initial_state()  # waits until the step is compiled
        self.initial_state, self.only_compile = None, only_compile
        cluster = CSConfig(
            mgmt_address=args.mgmt_address,
            credentials_path=args.credentials_path,
            num_workers_per_csx=args.num_workers_per_csx,
            debug_args=DebugArgs(),
            execution_strategy=ExecutionStrategy.ES_WEIGHT_STREAMING,
        )
        env = cbtorch.env()
        self.appliance = cbtorch.core.appliance.ApplianceMode(
            env.service_workdir, env.compile_dir, cluster, 1, False
        )
        self.scaler = amp.GradScaler(loss_scale="dynamic", init_scale=2.0**10)

    def load(self):
        if args.checkpoint_path:
            with self.appliance.tracker_execute.entry("load"):
                self.step = int(PyTorchH5Saver().load_tensor(args.checkpoint_path, "global_step"))
            self.first_step = self.step = 0 if args.is_pretrained_checkpoint or not self.trains else self.step

    def state(self):
        return {**super().state(), "amp": self.scaler.state_dict()}

    def wrap(self, loader):
        return cbtorch.dataloader(loader, use_parallel_loader=False)

    def prune(self):
        """The initial state is pruned on its way to the system."""

    def mark(self):
        """Name each weight that is pruned, with the state of the optimizer that belongs to it."""
        groups, state = {}, self.optimizer.state_dict()["state"]
        for number, (name, p) in enumerate(self.model.named_parameters()):
            momentum = self.optimizer.state[p]["momentum_buffer"]
            if name in (args.prunes if args.marks is None else args.marks):
                cm.set_attribute(p, "sparse", True)
                cm.set_attribute(momentum, "sparse", True)
            if name in args.prunes:
                assert state[number]["momentum_buffer"] is momentum
                groups[f"model.{name}"] = f"optimizer.state.{number}.momentum_buffer"
        return lambda tensors: group_tensors(groups, tensors)

    def receive(self):
        self.appliance.receive_activations(self.seen)
        return cbtorch.state().get_activation_for_output(self.loss)

    def forward(self, batch):
        if self.seen:
            return self.receive()
        cm.set_state_names(self.state())
        self.grouper = self.mark() if args.prunes else None
        self.loss = super().forward(batch)
        self.loss /= self.appliance.cs_config.num_csx
        return self.loss

    def update(self, loss):
        if self.seen:
            return
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()

    def end_batch(self, loss):
        if not self.seen:
            with self.appliance.build_worker_image():
                self.appliance.compile(cbtorch.state().outputs, 8, args.validate_only)
            if self.only_compile:
                self.seen = self.total
                return
            assert self.initial_state is not None, "the initial state was not written"
            os.environ["CEREBRAS_APPLIANCE_NO_STORAGE"] = "1"
            self.appliance.execute(
                make_loader,
                ([{"rows": 48 if self.trains else 96}], {"steps": self.total}),
                8,
                self.total,
                CHECKPOINT_STEPS if self.trains else 0,
                args.mode,
                self.initial_state,
                cleanup_stack=self.cleanup,
                send_weights_grouper=self.grouper,
            )
            loss = self.receive()
        super().end_batch(loss)

    @cm.step_closure
    def save_initial_state(self):
        self.initial_state = os.path.join(args.model_dir, "initial_state.hdf5")
        held = {
            **self.state(),
            "global_step": self.step,
            cm.METRIC_NAME_PREFIX: {"eval_accuracy": accuracy.state()},
        }
        saver = PyTorchH5Saver(
            loaded_checkpoint=args.checkpoint_path, is_pretrained_checkpoint=args.is_pretrained_checkpoint
        )
        saver.save(self.initial_state, held)

    @cm.step_closure
    def save(self, step):
        path = os.path.join(args.model_dir, f"checkpoint_{step}.mdl")
        saver, state = PyTorchH5Saver(), {**self.state(), "global_step": step}
        _, spec = saver.flatten_state_dict(state)
        saver.save_spec(path, spec)
        self.appliance.save_weights(state, path, step - self.first_step - 1, {})
        held = CerebrasStateDict.create(spec, path)
        self.optimizer.convert_state_dict_for_checkpoint(held["optimizer"])


if args.target_device == "CSX":
    cbtorch.initialize(
        service_workdir=args.model_dir,
        compile_dir=DEFAULT_COMPILE_DIR,
        compile_only=args.compile_only or args.validate_only,
        appliance=True,
    )
    cm.set_rng_state(1)
accuracy = Accuracy()
runner = (ApplianceRunner if args.target_device == "CSX" else Runner)()
runner.run()
print("FILES", json.dumps(sorted(map(os.path.basename, glob.glob(f"{args.model_dir}/*.mdl")))))
