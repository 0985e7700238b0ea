"""A small GPT trainer for releases 2: own groups, a schedule of two, checkpoints, evaluation, resume."""

import argparse
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import cerebras_pytorch as cstorch


@dataclass
class Config:
    vocab: int = 32
    width: int = 16
    heads: int = 2
    layers: int = 2
    context: int = 12
    dropout: float = 0.0


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.dropout = c.heads, c.dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv, self.out = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)
        self.mlp = nn.Sequential(nn.Linear(c.width, 4 * c.width), nn.GELU(), nn.Linear(4 * c.width, c.width))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(b, t, d)), self.dropout, self.training)
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens, self.places = nn.Embedding(c.vocab, c.width), nn.Embedding(c.context, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._init)

    @staticmethod
    def _init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Text(torch.utils.data.Dataset):
    """Sequences that count up in different steps."""

    def __init__(self, count, context, vocab):
        self.count, self.context, self.vocab = count, context, vocab

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        line = (torch.arange(self.context + 1) * (1 + i % 3) + i) % self.vocab
        return line[:-1], line[1:]


def get_dataloader(count, config, batch_size):
    rank, world = 0, 1
    if cstorch.distributed.is_streamer():
        rank, world = cstorch.distributed.get_streaming_rank(), cstorch.distributed.num_streamers()
    dataset = Text(count, config["context"], config["vocab"])
    mine = torch.utils.data.Subset(dataset, range(rank, len(dataset), world))
    return torch.utils.data.DataLoader(mine, batch_size=batch_size, drop_last=True)


def main(args, cluster_config):
    torch.manual_seed(args.seed)
    cstorch.backends.csx.debug.execute_crd_memory_gi = 16
    cstorch.backends.csx.debug.compile_crd_memory_gi = 32
    backend = cstorch.backend(args.backend, cluster_config=cluster_config, artifact_dir=args.out_dir)
    if not backend.is_cpu and args.half:
        cstorch.amp.set_half_dtype(args.half)
    config = Config(dropout=args.dropout)
    with backend.device:
        model = GPT(config)
    compiled_model = cstorch.compile(model, backend)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    optimizer = cstorch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}],
        lr=args.lr,
        weight_decay=0.1,
        correct_bias=True,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    lr_scheduler = cstorch.optim.lr_scheduler.SequentialLR(
        optimizer,
        schedulers=[
            cstorch.optim.lr_scheduler.LinearLR(
                optimizer, initial_learning_rate=0.0, end_learning_rate=args.lr, total_iters=4
            ),
            cstorch.optim.lr_scheduler.CosineDecayLR(
                optimizer, initial_learning_rate=args.lr, end_learning_rate=0.1 * args.lr, total_iters=20
            ),
        ],
        milestones=[4],
    )
    global_step = 0
    if args.checkpoint_path:
        state = cstorch.load(args.checkpoint_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        lr_scheduler.load_state_dict(state["lr_scheduler"])
        global_step = state["global_step"]
        assert Config(**state["config"]) == config
    out_dir = Path(args.out_dir)
    writer = cstorch.utils.tensorboard.SummaryWriter(log_dir=out_dir / "train")
    seen = {"losses": {}, "rates": [], "eval": [], "saved": []}

    @cstorch.trace
    def training_step(batch):
        ids, labels = batch
        loss = compiled_model(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        return loss

    @cstorch.trace
    @torch.no_grad()
    def eval_step(batch):
        return compiled_model(*batch)

    @cstorch.step_closure
    def log_loss(loss, step):
        rate = executor.profiler.rate_tracker.rate
        global_rate = executor.profiler.rate_tracker.global_rate()
        print(f"| Step={step}, Loss={loss.item():.5f}, Rate={rate:.2f}, GlobalRate={global_rate:.2f}")
        writer.add_scalar("loss", loss.item(), step)
        writer.add_scalar("samples_per_second", global_rate, step)
        seen["losses"][step] = loss.item()
        seen["rates"].append(global_rate)

    @cstorch.checkpoint_closure
    def save_checkpoint(step):
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "lr_scheduler": lr_scheduler.state_dict(),
            "global_step": step,
            "config": asdict(config),
        }
        cstorch.save(state, out_dir / f"checkpoint_{step}.mdl")
        seen["saved"].append(step)

    total = []

    @cstorch.step_closure
    def accumulate(loss):
        total.append(loss.item())

    loader = cstorch.utils.data.DataLoader(get_dataloader, args.examples, asdict(config), args.batch_size)
    executor = cstorch.utils.data.DataExecutor(
        loader, num_steps=args.num_steps - global_step, checkpoint_steps=args.checkpoint_steps
    )
    model.train()
    for step, batch in enumerate(executor, start=global_step + 1):
        if step == args.num_steps + 1:
            break
        loss = training_step(batch)
        log_loss(loss, step)
        save_checkpoint(step)

    model.eval()
    eval_loader = cstorch.utils.data.DataLoader(get_dataloader, 32, asdict(config), args.batch_size)
    for batch in cstorch.utils.data.DataExecutor(eval_loader, num_steps=4):
        accumulate(eval_step(batch))
    seen["eval"] = total
    writer.add_scalar("eval_loss", sum(total) / len(total), args.num_steps)
    writer.close()
    assert not math.isnan(sum(total))
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for field in fields(cstorch.distributed.ClusterConfig):
        if field.type in (str | None, int, int | None):
            parser.add_argument(
                f"--{field.name}", default=field.default, type=int if field.type is int else str
            )
    parser.add_argument("--backend", default="CSX")
    parser.add_argument("--out_dir", required=True)
    parser.add_argument("--checkpoint_path")
    parser.add_argument("--checkpoint_steps", type=int, default=4)
    parser.add_argument("--num_steps", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--half")
    args = parser.parse_args()
    names = {field.name for field in fields(cstorch.distributed.ClusterConfig)}
    cluster = {name: value for name, value in vars(args).items() if name in names}
    result = main(args, cstorch.distributed.ClusterConfig(**cluster))
