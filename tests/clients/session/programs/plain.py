"""The loop of a standard training, as release 1.2 announced it, then an evaluation with step closures."""

import argparse
import json

import cerebras_torch as cbtorch
import cerebras_torch.core.cb_model as cm
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--cs_ip")
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--reads", action="store_true")
args = parser.parse_args()

cbtorch.initialize(cs_ip=args.cs_ip, use_cs=args.cs_ip is not None)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.fc(x)


def get_dataloader():
    x = torch.randn(128, 6, generator=torch.Generator().manual_seed(3))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :4].argmax(1)), batch_size=16)


torch.manual_seed(0)
model = cbtorch.module(Model())
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)  # the session prepares it
train_dataloader = cbtorch.dataloader(get_dataloader())

global_step = 0
seen = []
with cbtorch.Session(model, optimizer, criterion, mode="train") as session:
    for epoch in range(2):
        for step, batch in enumerate(train_dataloader):
            global_step += 1
            optimizer.zero_grad()
            inputs, targets = batch
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            if args.reads:
                seen.append((global_step, loss.item(), (outputs.argmax(1) == 1).sum().item()))
            elif global_step % 3 == 0:
                number = global_step  # closures after the step see its value
                session.add_step_closure(
                    lambda loss, outputs, number: seen.append(
                        (number, loss.item(), int((outputs.argmax(1) == 1).sum()))
                    ),
                    args=(loss, outputs, number),
                )
            if global_step == 10:
                cm.save({"model": model.state_dict(), "step": global_step}, args.checkpoint)

model.eval()
total, metrics = [0.0], [0, 0]


@cm.step_closure
def note(loss, outputs, targets):
    total[0] += loss.item()
    metrics[0] += int((outputs.argmax(1) == targets).sum())
    metrics[1] += len(targets)


with torch.no_grad(), cbtorch.Session(train_dataloader, mode="eval") as session:
    for inputs, targets in train_dataloader:
        outputs = model(inputs)
        note(criterion(outputs, targets), outputs, targets)
        session.mark_step()

result = {"seen": seen, "eval": total + metrics, "state": {k: v.cpu() for k, v in model.state_dict().items()}}
cm.master_print(json.dumps(result["eval"]))
