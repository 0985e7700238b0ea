"""Trains and evaluates on the CS system or on this CPU, with hooks that a program may override.

On the CS system the body of the loop runs for the steps whose values are fetched: `log_steps`,
`checkpoint_steps` and the last step. Operations in hooks around a batch are recorded, and are part of every
step. Code that reads values belongs in `on_train_batch_end` and `on_eval_batch_end`, which run after these
steps. On this CPU all hooks run for every step.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cs_runtime.errors import NonFiniteLossError, RunError
from cs_runtime.files import write_json
from cs_runtime.requeue import (
    checkpoint_of_job,
    forget_calls,
    last_step_of_job,
    leave_for_requeue,
    record_checkpoint,
)
from cs_runtime.tasks import current
from cstorch import optim
from cstorch.amp.loss_scaling import clip_by_norm, clip_by_value, gradients
from cstorch.checkpoints import load_newest
from cstorch.metrics import compute_all_metrics, get_all_metrics
from cstorch.program import Program
from cstorch.tracing.state import continue_at
from cstorch.v1.runner.settings import RunConfig
from cstorch.v1.session import Session, dataloader, module, state
from cstorch.v1.session import compile as compile_step
from cstorch.v1.session.amp import GradScaler
from cstorch.v1.session.core import cb_model as cm
from cstorch.v1.session.core import modes
from cstorch.v1.session.optimizers import optimizer as prepare_optimizer
from cstorch.v1.session.session import DataLoader
from input_rules.input_export import export_requested

log = logging.getLogger("cstorch")

_CHECKPOINT = "checkpoint_{}.mdl"

_SCALER_KEYS = {
    "loss_scaling_factor": "loss_scale",
    "initial_loss_scale": "init_scale",
    "steps_per_increase": "steps_per_increase",
    "min_loss_scale": "min_loss_scale",
    "max_loss_scale": "max_loss_scale",
}


class LossValueError(RunError, ValueError):
    """The loss became NaN or infinite; a ValueError, as programs expect."""


class Runner:
    """Trains and evaluates a model.

    Args:
        model: The model.
        config: Steps, checkpoints, logs and other settings of the run.

    Attributes:
        global_step: Steps of the model in earlier runs, and the known ones of this run.
        losses: Loss by global step, for steps whose values were fetched.
    """

    def __init__(self, model: Model, config: RunConfig) -> None:
        self.model, self.config = model, config
        self.global_step = 0
        self.losses: dict[int, float] = {}
        self._first_step = self._total_steps = self._last_step = self._run_step = 0
        self._measured: Counter[str] = Counter()
        self._writer: Any = None

    # Hooks

    def on_train_start(self) -> None:
        """Run before the first step of a training run."""

    def on_train_end(self) -> None:
        """Run after the last step of a training run."""

    def on_eval_start(self) -> None:
        """Run before the first step of an evaluation."""

    def on_eval_end(self) -> None:
        """Run after the last step of an evaluation."""

    def on_train_epoch_start(self, epoch: int) -> None:
        """Run before an epoch; on the CS system a whole training run is one."""

    def on_train_epoch_end(self, epoch: int) -> None:
        """Run after an epoch."""

    def on_eval_epoch_start(self) -> None:
        """Run before the batches of an evaluation."""

    def on_eval_epoch_end(self) -> None:
        """Run after the batches of an evaluation."""

    def on_train_batch_start(self, batch: Any, step: int) -> Any:
        """Run before a training step; a return value other than None replaces the batch."""

    def on_eval_batch_start(self, batch: Any, step: int) -> Any:
        """Run before a step of an evaluation; a return value other than None replaces the batch."""

    def train_forward(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.model(batch)

    def eval_forward(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.model(batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients."""
        self.model.backward(loss)

    def optimizer_zero_grad(self) -> None:
        """Clear the gradients of the previous step."""
        self.model.optimizer.zero_grad()

    def optimizer_step(self) -> None:
        """Update the parameters."""
        self.model.step()

    @cm.step_closure
    def on_train_batch_end(self, loss: torch.Tensor) -> None:
        """Run after a training step: check and log its loss, and write a checkpoint if one is due."""
        self._count(float(loss))
        step, last = self._run_step, self._run_step == self._total_steps
        if last or _is_due(step, self.config.log_steps):
            self._log(float(loss))
        every = self.config.checkpoint_steps
        if (every and (last or _is_due(step, every))) or Program.current().checkpoint_requests.pending:
            self.save_checkpoint()

    @cm.step_closure
    def on_eval_batch_end(self, loss: torch.Tensor) -> None:
        """Run after a step of an evaluation: check and record its loss."""
        self._count(float(loss))

    # Commands

    def train(self, loader: Any) -> None:
        """Train for the steps of `runconfig`.

        Raises:
            StepsReachedError: No step is left.
            LossValueError: The loss became NaN or infinite.
        """
        loader = self._begin_training(loader)
        self._train_to(self._last_step, loader)
        self._finish_training()

    def evaluate(self, loader: Any) -> None:
        """Evaluate `eval_steps` batches, or all; log the mean loss and the metrics."""
        loader = self._prepare_loader(loader, modes.EVAL)
        trained, self.losses = self.global_step, {}
        self._first_step = self._run_step = 0
        steps = self.config.eval_steps or loader.epoch_steps(counted=True)
        for _, metric in get_all_metrics():
            metric.reset()
        self.model.network.eval()
        self.on_eval_start()
        self.on_eval_epoch_start()
        cm.set_run_config(steps, 0, 1)
        with torch.no_grad(), Session(loader, modes.EVAL):
            for step, batch in enumerate(islice(loader, steps)):
                loss = self.eval_forward(self._start_batch(batch, step, train=False))
                self.on_eval_batch_end(loss)
        self.on_eval_epoch_end()
        self.global_step = trained
        if cm.is_master_ordinal():
            self._report_evaluation()
        self.on_eval_end()
        cm.master_print("Evaluation Completed Successfully!", flush=True)

    def train_and_evaluate(self, train_loader: Any, eval_loader: Any) -> None:
        """Train, then evaluate; if the configuration has epochs, alternate after each."""
        loader = self._begin_training(train_loader)
        config, first = self.config, self.global_step
        in_epochs = config.num_epochs is not None or config.steps_per_epoch is not None
        every = (config.steps_per_epoch or loader.steps) if in_epochs else self._last_step - first
        for end in (*range(first - first % every + every, self._last_step, every), self._last_step):
            self._train_to(end, loader)
            if end == self._last_step:
                self._finish_training()
            losses, writer = self.losses, self._writer
            self.evaluate(eval_loader)
            self.losses, self._writer = losses, writer

    def compile(self, loader: Any, mode: str) -> None:
        """Compile a step of a training run or an evaluation, or check that it can be compiled."""
        train = mode == modes.TRAIN
        loader = dataloader(loader, use_parallel_loader=False)
        self.model.network.train(train)
        for batch in loader:
            with torch.set_grad_enabled(train):
                self._train_step(batch, 0) if train else self.on_eval_batch_end(self.eval_forward(batch))
            break
        compile_step(self.config.fabric_config_file, validate_only=self.config.validate_only)
        name = "training" if train else "evaluation"
        cm.master_print(f"Compile for {name} completed successfully!", flush=True)

    # Checkpoints

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the model after this step."""
        path = self.config.model_dir / _CHECKPOINT.format(self.global_step * cm.num_receivers())
        cm.save({"global_step": self.global_step, **self.model.state_dict()}, path)
        if cm.is_master_ordinal():
            record_checkpoint(self.config.model_dir, current(), path)
        log.info("Saved checkpoint at global step: %d", self.global_step)

    def load_checkpoint(self) -> None:
        """Load the checkpoint that `runconfig` names, or the newest one of `model_dir` if there is one.

        Of a pretrained checkpoint only the weights are loaded. A restarted job resumes from its own one.
        """
        if export_requested():
            return  # cs_input_analyzer needs neither weights nor the number of steps
        own = checkpoint_of_job(self.config.model_dir, current())
        given = None if own else self.config.checkpoint_path
        newest = load_newest([given] if given else newest_checkpoints(self.config.model_dir, own))
        if newest is None:
            return
        path, found = newest
        pretrained = self.config.is_pretrained_checkpoint and given is not None
        self.model.load_state_dict(found, weights_only=pretrained)
        self.global_step = 0 if pretrained else int(found.get("global_step", 0))
        continue_at(self.global_step)
        log.info("Loaded checkpoint '%s' of global step %d", path, self.global_step)

    # Internals

    def _begin_training(self, loader: Any) -> DataLoader:
        loader = self._prepare_loader(loader, modes.TRAIN)
        steps = self.config.total_steps(self.global_step, loader.steps)
        first, model_dir = self.global_step, self.config.model_dir
        Program.current().cleanup.callback(forget_calls)
        self._last_step = last_step_of_job(model_dir, current(), first, steps, None)
        self._measured.clear()
        self.on_train_start()
        if self.config.save_initial_checkpoint and cm.is_master_ordinal():
            self.save_checkpoint()
        return loader

    def _train_to(self, last_step: int, loader: DataLoader) -> None:
        """Train from the present step to a global step."""
        self._first_step, self._run_step = self.global_step, 0
        self._total_steps = last_step - self._first_step
        self.model.network.train()
        state().rate_tracker.reset()
        if cm.use_cs():
            log.info("Compiling the model and programming onto fabric. This may take a few minutes.")
            self._train_on_cs(loader)
        else:
            self._train_on_cpu(loader)
        self._measured.update(_figures())
        self.global_step = last_step  # workers have not counted the steps
        cm.rendezvous("train end")

    def _prepare_loader(self, loader: Any, mode: str) -> DataLoader:
        size = self.config.save_stream_size
        if size and cm.is_streamer():
            loader = _SavedBatches(loader, self.config.model_dir / "stream" / mode, size)
        self._writer = _writer(self.config.model_dir / mode) if cm.is_master_ordinal() else None
        return dataloader(loader, use_parallel_loader=True)

    def _train_on_cs(self, loader: DataLoader) -> None:
        cm.set_run_config(self._total_steps, self.config.checkpoint_steps, self.config.log_steps)
        self.on_train_epoch_start(0)
        try:
            with Session(loader, modes.TRAIN):
                for batch in loader:
                    self._train_step(batch, cm.get_run_step() - 1)
        except NonFiniteLossError as error:
            raise LossValueError(str(error)) from error
        self.on_train_epoch_end(0)

    def _train_on_cpu(self, loader: DataLoader) -> None:
        epoch_steps = self.config.steps_per_epoch or loader.steps
        batches = islice(loader.endless(self._first_step), self._total_steps)
        for step, batch in enumerate(batches):
            epoch, index = divmod(self._first_step + step, epoch_steps)
            requests = Program.current().checkpoint_requests
            asked, last = requests.pending, step + 1 == self._total_steps
            if not index or not step:
                self.on_train_epoch_start(epoch)
            self._train_step(batch, step)
            if index + 1 == epoch_steps or last:
                self.on_train_epoch_end(epoch)
            if asked and current().requeue and not last:
                leave_for_requeue(self.global_step)
            if asked:
                requests.clear()

    def _train_step(self, batch: Any, step: int) -> None:
        batch = self._start_batch(batch, step, train=True)
        batches = self.config.grad_accum_steps
        if _is_due(step, batches):
            self.optimizer_zero_grad()
        loss = self.train_forward(batch)
        self.backward(loss / batches if batches > 1 else loss)
        if _is_due(step + 1, batches):
            self.optimizer_step()
        self.on_train_batch_end(loss.detach())
        if not cm.use_cs():
            state().rate_tracker.add(_batch_size(batch))

    def _start_batch(self, batch: Any, step: int, *, train: bool) -> Any:
        changed = (self.on_train_batch_start if train else self.on_eval_batch_start)(batch, step)
        return batch if changed is None else changed

    def _count(self, loss: float) -> None:
        """Count the step after which this runs, record its loss, and check it."""
        self._run_step = cm.get_run_step() if cm.use_cs() else self._run_step + 1
        self.global_step = self._first_step + self._run_step
        self.losses[self.global_step] = loss
        if self.config.check_loss_values and not math.isfinite(loss):
            error = NonFiniteLossError(self.global_step, loss, self.config.model_dir)
            raise LossValueError(str(error))

    def _log(self, loss: float) -> None:
        cm.print_update(cm.device(), self.global_step, loss, "train", summary_writer=self._writer)

    def _finish_training(self) -> None:
        if cm.is_master_ordinal():
            config = self.config
            if self._writer is not None:
                self._writer.close()
            if config.save_losses:
                write_json(config.model_dir / "losses.json", {str(n): x for n, x in self.losses.items()})
            write_json(
                Path(config.service_dir or config.model_dir) / "performance" / "performance.json",
                _performance(self._measured),
            )
        self.on_train_end()
        cm.master_print("Training Completed Successfully!", flush=True)

    def _report_evaluation(self) -> None:
        mean = sum(self.losses.values()) / max(len(self.losses), 1)
        values = dict(compute_all_metrics())
        if values:
            log.info("Avg eval_metrics = %s", {name: round(value, 6) for name, value in values.items()})
        log.info("Avg Eval. Loss = %.6f", mean)
        cm.write_to_summary(self._writer, self.global_step, {"loss": mean, **values})
        if self._writer is not None:
            self._writer.close()


class _SavedBatches:
    """A loader whose first batches are written into files.

    Args:
        loader: The loader.
        directory: Directory for `RANK/batch_N.pt` of each worker.
        size: Number of batches to write.

    Attributes:
        sampler: Sampler of the loader.
    """

    def __init__(self, loader: Any, directory: Path, size: int) -> None:
        self._loader, self._size = loader, size
        self.sampler = getattr(loader, "sampler", None)
        self._directory = directory / str(cm.get_streaming_rank())

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._directory.mkdir(parents=True, exist_ok=True)
        for number, batch in enumerate(self._loader):
            if number < self._size:
                torch.save(batch, self._directory / f"batch_{number}.pt")
            yield batch


def newest_checkpoints(model_dir: Path, first: Path | None = None) -> list[Path]:
    """Return the checkpoints of a directory, those of high steps first.

    Args:
        model_dir: The directory.
        first: The checkpoint to begin with; later ones are omitted.
    """
    by_step = {_step_of(path): path for path in model_dir.glob(_CHECKPOINT.format("*"))}
    last = math.inf if first is None else _step_of(first)
    before = [path for step, path in sorted(by_step.items(), reverse=True) if 0 <= step < last]
    return before if first is None else [first, *before]


def _step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint; -1 if it has none."""
    text = path.stem.removeprefix("checkpoint_")
    return int(text) if text.isdecimal() else -1


def _is_due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


def _batch_size(batch: Any) -> int:
    from torch.utils import _pytree as pytree

    return next((len(x) for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.ndim), 1)


def _figures() -> dict[str, float]:
    """Return samples and seconds of the steps since the last evaluation, and the times of compile."""
    tracker = state().rate_tracker
    found = {"total_samples": tracker.total_count, "total_time": tracker.elapsed_seconds}
    for name, counter, unit in (
        ("compile_time", "CerebrasCompileTimeMs", 1e-3),
        ("programming_time", "CerebrasProgrammingTimeNs", 1e-9),
    ):
        value = cm.metrics_counter_value(counter)
        if value is not None:
            found[name] = value * unit
    return found


def _performance(measured: Mapping[str, float]) -> dict[str, Any]:
    """Return the contents of `performance/performance.json`: figures of training, and the estimate.

    The names are the original's; times are in seconds.
    """
    samples, seconds = measured.get("total_samples", 0), measured.get("total_time", 0.0)
    return {
        "total_samples": samples,
        "total_time": seconds,
        "samples_per_sec": samples / max(seconds, 1e-9),
        "est_samples_per_sec": cm.metrics_counter_value("CerebrasSystemEstSamples"),
        "compile_time": measured.get("compile_time"),
        "programming_time": measured.get("programming_time"),
    }


def _writer(directory: Path) -> Any:
    """Return a writer of summaries; None if TensorBoard is not installed."""
    try:
        from cstorch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(log_dir=str(directory))


class Model:
    """A network with its optimizer, schedule and loss scale; programs may derive from it.

    Args:
        network: Network, whose call with a batch returns the loss.
        params: `optimizer` has `optimizer_type`, its arguments, `learning_rate` (a number or schedules, see
            `cstorch.optim.configure_lr_scheduler`), `max_gradient_norm`, `max_gradient_value` and
            `loss_scaling_factor`; `model` may have `mixed_precision`. Without `optimizer` it only evaluates.

    Attributes:
        network: The network, on the CS system's device if there is one.
        optimizer: Optimizer; None without its parameters.
        lr_scheduler: Schedule; None without its parameters.
        scaler: Loss scale; None without its parameters.
    """

    def __init__(self, network: torch.nn.Module, params: Mapping[str, Any]) -> None:
        self.network = module(network)
        self.optimizer: Any = None
        self.lr_scheduler: Any = None
        self.scaler: GradScaler | None = None
        settings = dict(params.get("optimizer") or {})
        self._max_norm = settings.pop("max_gradient_norm", None)
        self._max_value = settings.pop("max_gradient_value", None)
        if settings:
            self._configure(settings, bool((params.get("model") or {}).get("mixed_precision")))

    def _configure(self, settings: dict[str, Any], mixed_precision: bool) -> None:
        scaling = {to: settings.pop(key) for key, to in _SCALER_KEYS.items() if key in settings}
        rate = settings.pop("learning_rate", settings.pop("lr", None))
        groups = optim.configure_param_groups(self.network, settings)
        for name in ("weight_decay", "weight_decay_rate"):
            settings.pop(name, None)
        optimizer = optim.configure_optimizer(params=groups, lr=1.0, **settings)
        self.optimizer = prepare_optimizer(optimizer)
        if rate is not None:
            self.lr_scheduler = optim.configure_lr_scheduler(optimizer, rate)
        self.scaler = GradScaler(mixed_precision=mixed_precision, **scaling)

    def __call__(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        loss: torch.Tensor = self.network(batch)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients."""
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler(loss).backward()

    def step(self) -> None:
        """Clip the gradients, update the parameters, and advance the schedule."""
        with torch.no_grad():
            if self._max_norm:
                clip_by_norm(gradients(self.optimizer), self._max_norm)
            if self._max_value:
                clip_by_value(gradients(self.optimizer), self._max_value)
        self.optimizer.step()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield "model", self.network
        for name in ("optimizer", "lr_scheduler", "scaler"):
            if getattr(self, name) is not None:
                yield name, getattr(self, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a training run needs to resume, by part."""
        return {name: part.state_dict() for name, part in self._parts()}

    def load_state_dict(self, state: Mapping[str, Any], *, weights_only: bool = False) -> None:
        """Load a state.

        Args:
            state: Return value of `state_dict`.
            weights_only: Keep the state of optimizer, schedule and loss scale.
        """
        for name, part in self._parts():
            if name == "model" or (name in state and not weights_only):
                part.load_state_dict(state[name])
