"""A trainer in the manner of release 1.8: functions over `params`, and a loop over epochs."""

import argparse
import json
import logging
from pathlib import Path

import cerebras_pytorch.experimental.metrics as metrics
import torch
from torch.utils.tensorboard import SummaryWriter

import cerebras_pytorch.experimental as cstorch

FEATURES, CLASSES = 8, 4


class Net(torch.nn.Module):
    def __init__(self, params):
        super().__init__()
        hidden = params["hidden"]
        self.fc1 = torch.nn.Linear(FEATURES, hidden)
        self.drop = torch.nn.Dropout(params["dropout"])
        self.fc2 = torch.nn.Linear(hidden, CLASSES)
        self.loss_fn = torch.nn.CrossEntropyLoss()
        self.accuracy = None
        if params["mode"] == "eval":
            self.accuracy = metrics.AccuracyMetric("eval/accuracy", compute_on_system=True)

    def forward(self, batch):
        inputs, labels = batch
        logits = self.fc2(self.drop(torch.relu(self.fc1(inputs))))
        if self.accuracy is not None:
            self.accuracy(labels=labels.clone(), predictions=logits.argmax(-1).int())
        return self.loss_fn(logits, labels)


def input_fn(params):
    generator = torch.Generator().manual_seed(params["data_seed"])
    x = torch.randn(params["num_examples"], FEATURES, generator=generator)
    dataset = torch.utils.data.TensorDataset(x, x[:, :CLASSES].argmax(1))
    return torch.utils.data.DataLoader(dataset, batch_size=params["batch_size"], drop_last=True)


def configure(params):
    runconfig = params["runconfig"]
    cstorch.configure(
        model_dir=params["model_dir"],
        compile_dir=params["compile_dir"],
        compile_only=runconfig.get("compile_only", False),
        validate_only=runconfig.get("validate_only", False),
        checkpoint_steps=runconfig.get("checkpoint_steps", 0),
        seed=runconfig.get("seed"),
        num_csx=1,
        max_wgt_servers=24,
        mgmt_address=params["mgmt_address"],
        credentials_path=None,
        debug_args=None,
        mount_dirs=["/tmp"],
        python_paths=[],
        transfer_processes=5,
        num_workers_per_csx=1,
        execution_strategy=None,
        job_labels=["name=flow"],
        max_act_per_csx=1,
        job_time_sec=None,
        disable_version_check=True,
    )


def prepared(params, mode):
    model = Net({**params["model"], "mode": mode})
    compiled_model = cstorch.compile(model, backend="WSE_WS")
    assert all(p.device.type == "xla" for p in model.parameters())
    logging.info("device %s", compiled_model.backend.name)
    assert compiled_model.backend.is_wse()
    assert not compiled_model.backend.is_gpu()
    return model, compiled_model


def load(params, parts):
    path = params.get("checkpoint_path")
    if path is None:
        return 0
    state = cstorch.load(path)
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(state[name])
    return state.get("global_step", 0)


def train(params):
    runconfig = params["runconfig"]
    model, compiled_model = prepared(params, "train")
    compiled_model.train()
    optimizer_params = dict(params["optimizer"])
    learning_rate = optimizer_params.pop("learning_rate")
    optimizer = cstorch.optim.configure_optimizer(
        optimizer_type=optimizer_params.pop("optimizer_type"),
        params=model.parameters(),
        lr=1.0,
        **optimizer_params,
    )
    lr_scheduler = cstorch.optim.configure_lr_scheduler(optimizer, learning_rate)
    grad_scaler = cstorch.amp.GradScaler(loss_scale="dynamic", init_scale=1024.0)
    global_step = load(
        params,
        {"model": model, "optimizer": optimizer, "lr_scheduler": lr_scheduler, "grad_scaler": grad_scaler},
    )
    writer = SummaryWriter(log_dir=f"{params['model_dir']}/train")

    @cstorch.compile_step
    def training_step(batch):
        loss = compiled_model(batch)
        cstorch.amp.optimizer_step(
            loss,
            optimizer,
            grad_scaler,
            max_gradient_norm=params["max_gradient_norm"],
            max_gradient_value=None,
        )
        if lr_scheduler:
            lr_scheduler.step()
            cstorch.scalar_summary("lr", lr_scheduler.get_last_lr()[0])
        cstorch.scalar_summary("loss_scale", grad_scaler.get_scale())
        return loss

    history, rates = [], []

    @cstorch.step_closure
    def post_training_step(loss, step, epoch):
        writer.add_scalar("loss", loss.item(), step)
        history.append([epoch, step, loss.item()])
        assert grad_scaler.get_scale().item() == 1024.0
        rates.append(lr_scheduler.get_last_lr()[0].item())

    @cstorch.step_closure
    def save_checkpoint(step):
        cstorch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "lr_scheduler": lr_scheduler.state_dict(),
                "grad_scaler": grad_scaler.state_dict(),
                "global_step": step,
            },
            f"{params['model_dir']}/checkpoint_{step}.mdl",
        )

    dataloader = cstorch.utils.data.DataLoader(
        input_fn,
        params["train_input"],
        initial_step=global_step,
        num_steps=runconfig.get("num_steps"),
        max_steps=runconfig.get("max_steps"),
        num_epochs=runconfig.get("num_epochs"),
        steps_per_epoch=runconfig.get("steps_per_epoch"),
    )
    assert dataloader.batch_size == params["train_input"]["batch_size"]
    every = runconfig["checkpoint_steps"]
    for epoch in range(dataloader.num_epochs):
        for batch in dataloader:
            loss = training_step(batch)
            global_step += 1
            post_training_step(loss, global_step, epoch)
            cstorch.save_summaries(writer, global_step)
            if every and global_step % every == 0:
                save_checkpoint(global_step)
    writer.close()
    return {"history": history, "rates": rates}


def evaluate(params):
    model, compiled_model = prepared(params, "eval")
    compiled_model.eval()
    load(params, {"model": model})
    dataloader = cstorch.utils.data.DataLoader(input_fn, params["eval_input"], num_epochs=1)
    total = {"loss": 0.0, "steps": 0}

    @cstorch.compile_step
    def eval_step(batch):
        return compiled_model(batch)

    @cstorch.step_closure
    def post_eval_step(loss):
        total["loss"] += loss.item()
        total["steps"] += 1

    with torch.no_grad():
        for batch in dataloader:
            post_eval_step(eval_step(batch))
    found = dict(metrics.compute_all_metrics())
    return {"loss": total["loss"] / total["steps"], "steps": total["steps"], **found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--params", required=True)
    parser.add_argument("--mode", choices=("train", "eval"), required=True)
    args = parser.parse_args()
    params = json.loads(Path(args.params).read_text())
    torch.manual_seed(params["runconfig"]["seed"])
    configure(params)
    result = train(params) if args.mode == "train" else evaluate(params)
