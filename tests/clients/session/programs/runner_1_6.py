"""A training and an evaluation in the manner of release 1.6: runner classes with hooks and step closures."""

import abc
import argparse
import json
import logging
import math
import os

import cerebras.framework.torch as cbtorch
import cerebras.framework.torch.core.cb_model as cm
import torch
import yaml
from cerebras.framework.torch import amp
from cerebras.framework.torch.core import modes
from cerebras.framework.torch.utils import nest

logging.basicConfig(level=logging.INFO, format="%(levelname)s:   %(message)s")

FEATURES, CLASSES = 12, 4


class SGD(torch.optim.Optimizer):
    """Momentum, with its state made before the first step."""

    def __init__(self, params, lr, momentum=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.preinitialize()

    def preinitialize(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p, device="cpu").to(p.device)
                self.state[p]["global_step"] = torch.tensor(0.0).to(p.device)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["global_step"] += 1.0
                buffer = self.state[p]["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(p.grad)
                p.data.add_(-group["lr"] * buffer)


class LRScheduler(torch.optim.lr_scheduler.LambdaLR, abc.ABC):
    """PyTorch's own on a CPU; its twin on the CS system."""

    def __init__(self, optimizer, decay_steps):
        if cm.is_wse_device() and not isinstance(optimizer, cbtorch.optim.Optimizer):
            raise ValueError(f"Expected a wrapped optimizer, got {type(optimizer)}")
        self.decay_steps = decay_steps
        self.cb_scheduler = self.configure_twin(optimizer) if cm.use_cs() else None
        super().__init__(optimizer, lr_lambda=self.lr_function)

    def step(self, *args, **kwargs):
        if cm.is_wse_device():
            self.last_epoch = max(self.last_epoch + 1, 0)
            if self.last_epoch:
                self.cb_scheduler.step()
        else:
            super().step(*args, **kwargs)

    def state_dict(self):
        return {"last_epoch": int(self.last_epoch)}


class PolynomialLR(LRScheduler):
    def __init__(self, optimizer, learning_rate, end_learning_rate, decay_steps, power=1.0):
        self.learning_rate, self.end, self.power = learning_rate, end_learning_rate, power
        super().__init__(optimizer, decay_steps)

    def configure_twin(self, optimizer):
        twin = cbtorch.optim.lr_scheduler.PolynomialLR
        return twin(optimizer, self.learning_rate, self.end, self.decay_steps, self.power, False)

    def lr_function(self, step):
        left = (1 - min(step, self.decay_steps) / self.decay_steps) ** self.power
        return ((self.learning_rate - self.end) * left + self.end) / self.learning_rate


class Accuracy:
    """Counts on the host, with values that come back."""

    def __init__(self):
        self.hits = self.count = 0
        if cm.is_wse_device():
            cbtorch.state().register_metric(self)

    @cm.step_closure
    def update(self, labels, predictions):
        assert labels.device.type == predictions.device.type == "cpu"
        self.hits += int((labels == predictions).sum())
        self.count += labels.numel()


class Model:
    def __init__(self, params, device):
        self.accuracy = Accuracy()
        torch.manual_seed(params["runconfig"]["seed"])
        hidden = params["model"]["hidden_size"]
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES)
        )
        if cm.use_cs():
            self.model = cbtorch.module(self.model, device)
        self.loss_fn = torch.nn.NLLLoss()
        optimizer = params["optimizer"]
        self.optimizer = SGD(self.model.parameters(), optimizer["learning_rate"], optimizer["momentum"])
        if cm.use_cs():
            self.optimizer = cbtorch.optimizer(self.optimizer)
        self.lr_scheduler = PolynomialLR(self.optimizer, optimizer["learning_rate"], 0.01, 20)

    def __call__(self, data):
        inputs, labels = data
        outputs = torch.nn.functional.log_softmax(self.model(inputs), dim=1)
        if not cm.use_cs():
            labels = labels.long()
        loss = self.loss_fn(outputs, labels)
        if not self.model.training:
            self.accuracy.update(labels.clone(), outputs.argmax(-1).int())
        return loss


class BaseRunner(abc.ABC):
    """The loop, with what may be overridden."""

    @classmethod
    def create(cls, model_fn, params):
        run = params["runconfig"]
        only_compile = run["compile_only"] or run["validate_only"]
        if run["cs_ip"] is None and not only_compile:
            return CPURunner(model_fn(params, torch.device("cpu")), params)
        cbtorch.initialize(
            service_workdir=run["model_dir"],
            compile_dir=run["compile_dir"],
            cs_ip=run["cs_ip"],
            compile_only=only_compile,
            appliance=False,
            use_cbfloat16=False,
        )
        runner = CSCompiler if only_compile else CSRunner
        return runner(model_fn(params, cm.device()), params)

    def __init__(self, model, params):
        self.model, self.run = model, params["runconfig"]
        self.global_step = self.run_step = 0
        self.losses = []
        scaling = params["optimizer"].get("loss_scaling_factor")
        self.scaler = None
        if scaling and cm.use_cs():
            self.scaler = amp.GradScaler(
                loss_scale=scaling,
                init_scale=2.0**8,
                steps_per_increase=4,
                min_loss_scale=2.0**-14,
                max_loss_scale=2.0**15,
                max_gradient_norm=None,
                mixed_precision=params["model"].get("mixed_precision", False),
            )
            assert self.scaler.get_init_params()["init_scale"] == 2.0**8

    def train(self, loader):
        self.model.model.train()
        self.on_train_start()
        for epoch in range(2):
            for step, data in enumerate(loader):
                loss = self.model(data)
                self.model.optimizer.zero_grad()
                if self.scaler:
                    self.scaler(loss).backward()
                else:
                    loss.backward()
                self.model.optimizer.step()
                self.model.lr_scheduler.step()
                self.on_train_batch_end(loss, epoch, step)
                if self.run_step >= self.run["max_steps"]:
                    break
        self.on_train_end()

    def on_train_start(self):
        pass

    def on_train_end(self):
        pass

    @cm.step_closure
    def on_train_batch_end(self, loss, epoch=None, step=None):
        self.count_step()
        loss = loss.item()
        if math.isnan(loss):
            raise ValueError("NaN loss encountered.")
        self.losses.append([self.global_step, loss])
        steps = self.run["checkpoint_steps"]
        if steps and self.global_step % steps == 0:
            self.save()

    @abc.abstractmethod
    def count_step(self):
        """One more."""

    def save(self):
        state = {
            "global_step": self.global_step,
            "model": self.model.model.state_dict(),
            "optimizer": self.model.optimizer.state_dict(),
            "lr_scheduler": self.model.lr_scheduler.state_dict(),
        }
        if self.scaler is not None:
            state["amp"] = self.scaler.state_dict()
        step = self.global_step * cm.num_receivers()
        path = os.path.join(self.run["model_dir"], f"checkpoint_{step}.mdl")
        sizes = []

        def seen(held):
            assert not list(nest.visit_xla_tensors(held))
            sizes.append(len(held["model"]))
            return held

        cm.save(state, path, master_only=True, post_transfer_callback=seen)
        assert sizes == [4]
        logging.info(f"Saved checkpoint at global step: {step}")

    def load(self, path):
        held = torch.load(path, map_location=torch.device("cpu"))
        self.model.model.load_state_dict(held["model"])
        self.model.optimizer.load_state_dict(held["optimizer"])
        self.global_step = held["global_step"]

    def evaluate(self, loader):
        self.model.model.eval()
        with torch.no_grad():
            for step, data in enumerate(loader):
                self.on_eval_batch_end(self.model(data), 0, step)
        accuracy = self.model.accuracy
        if cm.is_master_ordinal():
            mean = sum(loss for _, loss in self.losses) / len(self.losses)
            print("EVAL", json.dumps([mean, accuracy.hits / accuracy.count]))

    @cm.step_closure
    def on_eval_batch_end(self, loss, epoch=None, step=None):
        self.losses.append([step, loss.item()])


class CPURunner(BaseRunner):
    def count_step(self):
        self.run_step += 1
        self.global_step += 1


class CSRunner(BaseRunner):
    def __init__(self, model, params):
        super().__init__(model, params)
        cm.set_target_num_replicas(1)
        self.performance = os.path.join(cbtorch.env().service_workdir, "performance")
        os.makedirs(self.performance, exist_ok=True)
        assert not cbtorch.env().weight_streaming_mode
        cbtorch.state().track_object(self)

    def on_train_start(self):
        logging.info("Compiling the model and programming onto fabric. This may take a few minutes.")

    def train(self, loader):
        loader = cbtorch.dataloader(loader, use_parallel_loader=True)
        cm.set_run_config(self.run["max_steps"], self.run["checkpoint_steps"], self.run["log_steps"])
        with cbtorch.Session(loader, modes.TRAIN):
            super().train(loader)
        everyone = cm.rendezvous("train", payload=str(cm.get_ordinal()).encode())
        assert everyone == [str(rank).encode() for rank in range(cm.num_tasks())]
        assert cm.mesh_reduce("ranks", cm.get_ordinal(), sum) == sum(range(cm.num_tasks()))
        if cm.is_master_ordinal():
            self.save_performance()
            cm.print_metrics_report()

    def count_step(self):
        assert cbtorch.state().is_inside_execution_loop
        self.run_step = cm.get_run_step()
        self.global_step = self.run_step

    def save_performance(self):
        from cerebras.workflow.python.cs_perf_analyzer import AssessBottlenecks, locate_csperf_log

        tracker = cbtorch.state().rate_tracker
        found = {
            "total_samples": tracker._count + 0 * tracker._partial_count,
            "samples_per_sec": tracker.global_rate(),
            "compile_time": cm.metrics_counter_value("CerebrasCompileTimeMs"),
            "programming_time": cm.metrics_counter_value("CerebrasProgrammingTimeNs"),
            "est_samples_per_sec": cm.metrics_counter_value("CerebrasSystemEstSamples"),
        }
        log = locate_csperf_log(cbtorch.env().service_workdir)
        found["phases"] = [] if log is None else sorted(AssessBottlenecks(log).assess())
        with open(os.path.join(self.performance, "performance.json"), "w") as file:
            json.dump(found, file)

    def evaluate(self, loader):
        loader = cbtorch.dataloader(loader)
        cm.set_run_config(len(loader), 0, 1)
        with cbtorch.Session(loader, mode=modes.EVAL):
            super().evaluate(loader)


class CSCompiler(BaseRunner):
    def train(self, loader):
        self.model.model.train()
        for data in cbtorch.dataloader(loader, use_parallel_loader=False):
            loss = self.model(data)
            (self.scaler(loss) if self.scaler else loss).backward()
            self.model.optimizer.step()
            break
        done = cbtorch.compile(
            fabric_config_file=self.run["fabric_config_file"], validate_only=self.run["validate_only"]
        )
        assert done
        logging.info("Compile for training completed successfully!")

    def count_step(self):
        raise AssertionError("nothing runs")


def data_fn(params):
    size, half = params["train_input"]["batch_size"], params["train_input"].get("to_float16", False)
    if cm.use_cs() and not cm.is_streamer():
        import torch_xla.utils.utils as xu

        inputs = torch.zeros(size, FEATURES, dtype=torch.float16 if half else torch.float32)
        return xu.SampleGenerator(data=(inputs, torch.zeros(size, dtype=torch.int32)), sample_count=16)
    x = torch.randn(16 * size, FEATURES, generator=torch.Generator().manual_seed(3))
    y = x[:, :CLASSES].argmax(1).int()
    if half:
        x = x.half() if cm.use_cs() else x.half().float()
    dataset = torch.utils.data.TensorDataset(x, y)
    mine = list(range(len(dataset)))
    if cm.use_cs() and params["runconfig"]["mode"] == "train":
        # batch i goes to worker i modulo their number, so that the system sees the order of one reader
        count, rank = cm.num_streamers(), cm.get_streaming_rank()
        mine = [i for i in mine if (i // size) % count == rank]
    return torch.utils.data.DataLoader(
        torch.utils.data.Subset(dataset, mine), batch_size=cm.get_streaming_batch_size(size), drop_last=True
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-cs", "--cs_ip")
    parser.add_argument("-p", "--params", required=True)
    parser.add_argument("-m", "--mode", choices=modes.get_modes(), required=True)
    parser.add_argument("-o", "--model_dir", default="model_dir")
    parser.add_argument("-c", "--compile_dir")
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--checkpoint_path")
    parser.add_argument("--fabric_config_file")
    args = parser.parse_args()
    with open(args.params) as file:
        params = yaml.safe_load(file)
    params["runconfig"].update({k: v for k, v in vars(args).items() if k != "params"})
    runner = BaseRunner.create(Model, params)
    if cm.is_master_ordinal():
        os.makedirs(os.path.join(args.model_dir, args.mode), exist_ok=True)
        with open(os.path.join(args.model_dir, args.mode, f"params_{args.mode}.yaml"), "w") as file:
            yaml.safe_dump(params, file)
    if args.checkpoint_path:
        runner.load(args.checkpoint_path)
    if args.mode == "train":
        runner.train(data_fn(params))
        cm.master_print("LOSSES", json.dumps(runner.losses))
    else:
        runner.evaluate(data_fn(params))


if __name__ == "__main__":
    main()
