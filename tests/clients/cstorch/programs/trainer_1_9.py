"""A trainer in the manner of release 1.9: a class over a backend and executors; train and eval alternate."""

import argparse
from pathlib import Path

import torch
from torch import nn

import cerebras_pytorch as cstorch


class Classifier(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width * 16, 3)

    def forward(self, image):
        x = torch.relu(self.norm(self.conv(image)))
        x = torch.max_pool2d(x, 2)
        return self.head(x.flatten(1))


def images(count, batch_size, seed):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=draw)
    pictures = 0.3 * torch.randn(count, 1, 8, 8, generator=draw)
    for label in range(3):
        pictures[labels == label, :, 2 * label : 2 * label + 2] += 1.0
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(pictures, labels), batch_size=batch_size, drop_last=True
    )


class Trainer:
    def __init__(self, args):
        self.args = args
        self.backend = cstorch.backend(
            args.backend,
            artifact_dir=args.artifact_dir,
            compile_dir=args.compile_dir,
            compile_only=args.compile_only,
            validate_only=False,
            drop_data=False,
            max_checkpoints=2,
        )
        assert cstorch.current_backend() is self.backend
        with self.backend.device:
            self.model = Classifier(4)
        self.compiled = cstorch.compile(self.model, self.backend)
        self.optimizer = cstorch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = cstorch.optim.configure_lr_scheduler(
            self.optimizer,
            {"scheduler": "Linear", "initial_learning_rate": 0.1, "end_learning_rate": 0.01, "steps": 20},
        )
        self.accuracy = cstorch.metrics.AccuracyMetric("accuracy", compute_on_system=True)
        self.writer = cstorch.utils.tensorboard.SummaryWriter(log_dir=str(Path(args.artifact_dir) / "events"))
        self.cs_config = cstorch.utils.CSConfig(
            mgmt_address=args.mgmt_address,
            num_csx=1,
            num_workers_per_csx=1,
            max_wgt_servers=2,
            mount_dirs=["/data"],
            execution_strategy=None,
        )
        self.global_step = 0
        self.losses, self.rates, self.accuracies, self.saved = [], [], [], []
        self.learning_rates, self.running = [], []

    def executor(self, loader, steps, **settings):
        return cstorch.utils.data.DataExecutor(
            loader, num_steps=steps, cs_config=self.cs_config, writer=self.writer, **settings
        )

    def fit(self, steps):
        loader = cstorch.utils.data.DataLoader(images, 96, batch_size=self.args.batch_size, seed=1)
        steps = cstorch.utils.data.compute_num_steps(
            loader, initial_step=self.global_step, num_steps=None, max_steps=self.global_step + steps
        )
        executor = self.executor(loader, steps, checkpoint_steps=self.args.checkpoint_steps)
        loss_fn = nn.CrossEntropyLoss()

        @cstorch.compile_step
        def step(batch):
            image, label = batch
            loss = loss_fn(self.compiled(image), label)
            cstorch.amp.optimizer_step(loss, self.optimizer, None)
            self.scheduler.step()
            cstorch.summarize_scalar("lr", self.scheduler.get_last_lr()[0])
            return loss

        @cstorch.step_closure
        def log(loss):
            self.losses.append(loss.item())
            self.learning_rates.append(float(self.scheduler.get_last_lr()[0]))
            self.writer.add_scalar("seen_lr", self.scheduler.get_last_lr()[0], self.global_step)
            self.rates.append(executor.profiler.rate_tracker.global_rate())

        @cstorch.checkpoint_closure
        def checkpoint(number):
            path = Path(self.args.artifact_dir) / f"checkpoint_{number}.mdl"
            cstorch.save({"model": self.model.state_dict(), "global_step": number}, path)
            self.saved.append(path.name)

        self.compiled.train()
        for batch in executor:
            loss = step(batch)
            self.global_step += 1
            log(loss)
            checkpoint(self.global_step)

    def validate(self, steps):
        loader = cstorch.utils.data.DataLoader(images, 48, batch_size=self.args.batch_size, seed=2)
        self.accuracy.reset()

        @cstorch.compile_step
        @torch.no_grad()
        def step(batch):
            image, label = batch
            logits = self.compiled(image)
            self.accuracy(labels=label, predictions=logits.argmax(-1))
            return nn.functional.cross_entropy(logits, label)

        self.compiled.eval()
        for batch in self.executor(loader, steps):
            step(batch)
            self.running.append(float(self.accuracy))
        self.accuracies.append(float(self.accuracy))
        self.writer.add_scalar("eval_accuracy", self.accuracies[-1], self.global_step)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="CSX")
    parser.add_argument("--artifact_dir", required=True)
    parser.add_argument("--compile_dir")
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--mgmt_address")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--checkpoint_steps", type=int, default=4)
    cstorch.amp.use_bfloat16(False)
    torch.manual_seed(7)
    trainer = Trainer(parser.parse_args())
    for _ in range(2):
        trainer.fit(10)
        trainer.validate(3)
    trainer.writer.close()
    result = vars(trainer)
