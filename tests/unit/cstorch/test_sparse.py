"""Sparse weights: the masks of each algorithm, eager and in a step that is traced once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cstorch
from cs_toolkit.step import GLOBAL_STEP, OPTIMIZER_STATE
from cstorch import amp, optim, sparse
from cstorch.program import Program
from cstorch.sparse import init, utils
from cstorch.sparse.utils import checkerboard_mask, from_zeros_mask, kept_count, largest, topk_mask
from tests.systems import RunningSystem

from .conftest import run_compiled

COSINE = {"type": "cosine", "init": 0.4, "half_period": 6}
EXP = {"type": "exp", "init": 0.2, "gamma": -0.3, "final": 0.9}


class Small(nn.Module):
    """Two weights that the default filter chooses, and some that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.second = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.relu(self.norm(self.first(self.embedding(x)))))
        return found


def sparse_model(config: Any) -> tuple[Small, Any]:
    torch.manual_seed(3)
    model = Small()
    algorithm = sparse.configure(copy.deepcopy(config))
    model.apply(algorithm)
    return model, algorithm


def weights(algorithm: Any, model: nn.Module) -> dict[str, Any]:
    return {weight.name: weight for weight in algorithm.get_sparse_params(model)}


CONFIGS = {
    "static": 0.5,
    "gmp": {"algorithm": "gmp", "sparsity": EXP, "update": {"freq": 2, "start": 1}},
    "rigl": {
        "algorithm": "rigl",
        "sparsity": 0.75,
        "drop_fraction": COSINE,
        "update": {"freq": 2, "stop": 5},
    },
    "balanced": {"algorithm": "RigL", "sparsity": 0.5, "balance_out_groups": 2},
    "groups": [
        {"algorithm": "gmp", "sparsity": [0.25, 0.5], "param_filter": "first.*"},
        {"sparsity": 0.25, "init_method": "topk", "param_filter": ["sec*.weight"]},
    ],
}


def train(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    model.optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_that_is_traced_once_sparsifies_as_an_eager_one(name: str) -> None:
    torch.manual_seed(1)  # Adam divides by gradients: where they are near zero, it enlarges rounding
    batches = [(torch.randint(5, (7,)),) for _ in range(6)]

    def prepare(model: nn.Module) -> dict[str, torch.Tensor]:
        optimizer = optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
        optimizer.apply(model.algorithm)
        object.__setattr__(model, "optimizer", optimizer)
        return {OPTIMIZER_STATE + key: value for key, value in optimizer.named_state()}

    models = []
    for _ in range(2):
        model, algorithm = sparse_model(CONFIGS[name])
        object.__setattr__(model, "algorithm", algorithm)
        models.append(model)
    eager, other = models
    prepare(eager)
    first = {key: weight.mask.clone() for key, weight in weights(eager.algorithm, eager).items()}
    losses = [float(train(eager, *batch)) for batch in batches]
    compiled = run_compiled(other, train, batches, prepare)
    np.testing.assert_allclose(compiled.values[:, 0], losses, rtol=1e-5)
    for key, value in eager.state_dict().items():
        if key.endswith("_mask") and name in ("static",):
            continue  # a constant of the step
        if f"state.model.{key}" in compiled.state:
            found = compiled.state[f"state.model.{key}"]
            np.testing.assert_allclose(found, value.numpy(), rtol=1e-5, atol=1e-6, err_msg=key)
    changed = {key: not torch.equal(first[key], w.mask) for key, w in weights(eager.algorithm, eager).items()}
    assert changed["first.weight"] is (name != "static")
    for weight in eager.algorithm.get_sparse_params(eager):
        assert not weight.param[~weight.mask].any()
        for state in ("exp_avg", "exp_avg_sq"):
            assert not eager.optimizer.state[weight.param][state][~weight.mask].any()
    assert compiled.state.keys() >= {GLOBAL_STEP}


def test_chosen_weights_and_their_masks_are_in_the_model() -> None:
    model, algorithm = sparse_model(0.75)
    assert sorted(weights(algorithm, model)) == ["first.weight", "second.weight"]
    assert algorithm.num_sparse_params == 2
    masks = [key for key in model.state_dict() if key.endswith("_mask")]
    assert masks == ["first.weight_mask", "second.weight_mask"]
    for weight in algorithm.get_sparse_params(model):
        assert float(weight.mask.float().mean()) == 0.25
        assert not weight.param[~weight.mask].any()
    (found,) = algorithm.get_sparse_params(model.first.weight)
    assert found.name == "first.weight"


def test_a_pattern_chooses_by_the_path_in_the_whole_model() -> None:
    whole = nn.Sequential(Small(), Small())
    algorithm = sparse.configure({"sparsity": 0.5, "param_filter": "1.*weight"})
    whole.apply(algorithm)
    assert sorted(weights(algorithm, whole)) == [
        f"1.{name}.weight" for name in ("embedding", "first", "norm", "second")
    ]
    group = sparse.Group({lambda name, p: name == "0.first.weight": sparse.Static(0.5)})
    group.extend(algorithm)
    assert (len(group), group[1]) == (2, algorithm[0])


def test_gradients_are_sparse_and_a_loaded_model_is_pruned() -> None:
    model, algorithm = sparse_model(0.5)
    model(torch.arange(5)).sum().backward()
    for weight in algorithm.get_sparse_params(model):
        assert not weight.param.grad[~weight.mask].any()
        assert weight.dense_grad[~weight.mask].any()
    dense = {key: torch.ones_like(value) for key, value in model.state_dict().items() if "mask" not in key}
    model.load_state_dict(dense, strict=False)
    for weight in algorithm.get_sparse_params(model):
        assert torch.equal(weight.param != 0, weight.mask)


def test_masks_and_steps_continue_from_a_checkpoint(tmp_path: Path) -> None:
    def run(steps: int) -> tuple[Small, Any, Any]:
        model, algorithm = sparse_model(CONFIGS["gmp"])
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.apply(algorithm)
        object.__setattr__(model, "optimizer", optimizer)
        for _ in range(steps):
            train(model, torch.arange(5))
        return model, algorithm, optimizer

    whole = run(6)
    half = run(3)
    cstorch.save([part.state_dict() for part in half], tmp_path / "a.mdl")
    resumed = run(0)
    for part, state in zip(resumed, cstorch.load(tmp_path / "a.mdl"), strict=True):
        part.load_state_dict(state)
    for _ in range(3):
        train(resumed[0], torch.arange(5))
    for key, value in whole[0].state_dict().items():
        assert torch.equal(value, resumed[0].state_dict()[key]), key
    assert int(resumed[1].state_dict()["step"]) == 6


def test_an_undone_step_updates_no_mask() -> None:
    model, algorithm = sparse_model({"algorithm": "set", "sparsity": 0.5})
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(algorithm)
    scaler = amp.GradScaler("dynamic", init_scale=2.0, overflow_tolerance=0.0)
    (weight, *_) = algorithm.get_sparse_params(model)
    for scale, steps in ((torch.inf, 0), (1.0, 1)):
        before = weight.mask.clone()
        amp.optimizer_step(model(torch.arange(5)).sum() * scale, optimizer, scaler)
        assert torch.equal(before, weight.mask) is (steps == 0)
        assert int(algorithm[0].step) == steps
        assert float(weight.mask.float().mean()) == 0.5


def test_set_drops_the_smallest_and_grows_others() -> None:
    algorithm = sparse.SET(sparsity=0.5, drop_fraction=0.5)
    weight = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    found = algorithm.update_mask(weight, weight != 0, 0.5)
    assert found[:2].all()
    assert int(found.sum()) == 4


def test_rigl_grows_where_gradients_are_largest() -> None:
    model = nn.Linear(4, 2, bias=False)
    algorithm = sparse.RigL(sparsity=0.5, drop_fraction=0.5, update={"freq": 1})
    algorithm.sparsify_parameter(model, "weight", model.weight)
    (weight,) = algorithm.get_sparse_params(model)
    mask = torch.tensor([[True, True, False, False], [True, True, False, False]])
    weight.mask.copy_(mask)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 1.0, 0, 0], [3.0, 2.0, 0, 0]]))
    (model.weight * torch.tensor([[0.0, 0, 5.0, 1.0], [0, 0, 2.0, 7.0]])).sum().backward()
    found = algorithm.update_mask(model.weight, weight.mask, 0.5)
    assert found.tolist() == [[True, False, True, False], [True, False, False, True]]
    balanced = sparse.RigL(sparsity=0.5, balance_in_groups=2)
    balanced.sparsify_parameter(model, "weight", model.weight)
    assert balanced.update_mask(model.weight, mask, 0.5)[:, :2].sum() == 2
    with pytest.raises(
        ValueError, match="weight has 4 elements in dimension 1, expected a multiple of the 3"
    ):
        sparse.RigL(sparsity=0.5, balance_in_groups=3).sparsify_parameter(model, "weight", model.weight)


def test_hooks_get_target_and_actual_sparsity() -> None:
    model, algorithm = sparse_model(CONFIGS["gmp"])
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(algorithm)
    found: dict[str, list[float]] = {"target": [], "actual": []}

    def note(kind: str) -> Callable[..., None]:
        return lambda _, name, value: found[kind].append(float(value)) if name == "first.weight" else None

    algorithm.register_target_sparsity_hook(note("target"))
    handle = algorithm.register_computed_sparsity_hook(note("actual"))
    object.__setattr__(model, "optimizer", optimizer)
    for _ in range(2):
        train(model, torch.arange(5))
    handle.remove()
    train(model, torch.arange(5))
    expected = [0.9 - 0.7 * np.exp(-0.3 * step) for step in range(3)]
    assert found["target"] == pytest.approx(expected, rel=1e-5)
    assert found["actual"] == pytest.approx([10 / 48, math.ceil(48 * expected[1]) / 48])


def test_schedules_of_numbers_and_of_updates() -> None:
    steps = torch.arange(5)
    cases: list[tuple[Any, list[float]]] = [
        (0.5, [0.5] * 5),
        ({"type": "linear", "init": 0.1, "slope": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"type": "power", "init": 1.0, "beta": 0.5}, [1, 0.5, 0.25, 0.125, 0.0625]),
        ({"type": "cosine", "init": 1.0, "half_period": 2}, [1, 0.5, 0, 0.5, 1]),
        ([0.1, 0.2], [0.1, 0.2, 0.1, 0.2, 0.1]),
        (lambda step: step * 0.5, [0, 0.5, 1, 1.5, 2]),
    ]
    for given, expected in cases:
        schedule = utils.configure_hyperparameter("x", given)
        assert [float(schedule(step)) for step in steps] == pytest.approx(expected, abs=1e-6)
    updates = sparse.SET(sparsity=0.5, update={"freq": 2, "start": 1, "stop": 4}).update_schedule
    assert [bool(updates.is_update_step(step)) for step in steps] == [False, True, False, True, False]
    for given in ([4], {"steps": [4]}):
        listed = sparse.SET(sparsity=0.5, update=given).update_schedule
        assert [bool(listed.is_update_step(step)) for step in steps] == [False] * 4 + [True]


def test_first_masks() -> None:
    weight = torch.tensor([[0.0, -4.0, 1.0], [2.0, 0.0, 3.0]])
    assert topk_mask(weight, 0.5).tolist() == [[False, True, False], [True, False, True]]
    assert torch.equal(from_zeros_mask(weight, 0.9), weight != 0)
    assert checkerboard_mask(weight, 0.5).tolist() == [[False, True, False], [True, False, True]]
    assert largest(torch.zeros(4), torch.tensor(3)).tolist() == [True, True, True, False]
    assert int(kept_count(10, torch.tensor(0.75))) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sparse.Static(1.0), "got sparsity=1.0, expected a share of zeros from 0 to below 1"),
        (lambda: sparse.Static(), "got no sparsity"),
        (lambda: sparse.configure({"sparsity": 0.5, "algorithm": "magic"}), "'magic', expected static, gmp"),
        (lambda: sparse.Static(0.5, init_method="none"), "init_method='none', expected one of random"),
        (lambda: sparse.GMP(sparsity={"type": "x"}), "sparsity=.*expected a number, a list"),
        (lambda: sparse.GMP(sparsity={"type": "exp"}), "sparsity: .*missing.*check the arguments"),
        (lambda: sparse.SET(sparsity=0.5, update={"every": 3}), "update=.*freq, start and stop"),
        (lambda: sparse.RigL(sparsity=0.5, balance_in_groups=2, balance_out_groups=2), "one of the two"),
        (
            lambda: sparse.configure({"sparsity": 0.5, "param_filter": 3}),
            "param_filter=3, expected a pattern",
        ),
    ],
)
def test_bad_configurations_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def _loader() -> torch.utils.data.DataLoader:
    x = torch.randint(5, (24, 7), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(x, batch_size=3)


@pytest.mark.usefixtures("fresh_process")
def test_a_model_is_sparse_on_the_system_and_continues_there(system: RunningSystem, tmp_path: Path) -> None:
    config = {**CONFIGS["rigl"], "drop_fraction": 0.4, "update": {"freq": 3, "start": 1}}
    losses: dict[str, list[float]] = {"eager": [], "system": []}
    eager, algorithm = sparse_model(config)
    eager.optimizer = optim.AdamW(eager.parameters(), lr=0.05)
    eager.optimizer.apply(algorithm)
    for x in _loader():
        losses["eager"].append(float(train(eager, x)))
    found: list[dict[str, Any]] = []
    for steps in (4, 8):  # the second run continues from the checkpoint of the first
        Program.reset()
        cstorch.configure(model_dir=tmp_path, mgmt_address=system.address, seed=1, checkpoint_steps=4)
        model, algorithm = sparse_model(config)
        model = cstorch.compile(model)
        model.optimizer = optim.AdamW(model.parameters(), lr=0.05)
        model.optimizer.apply(algorithm)
        parts = {"model": model, "optimizer": model.optimizer, "sparsity": algorithm}
        if found:
            for name, part in parts.items():
                part.load_state_dict(cstorch.load(tmp_path / "4.mdl")[name])
        step = cstorch.trace(lambda x, model=model: train(model, x))

        @cstorch.step_closure
        def note(loss: torch.Tensor) -> None:
            losses["system"].append(float(loss))

        loader = cstorch.utils.data.DataLoader(_loader)
        executor = cstorch.utils.data.DataExecutor(loader, num_steps=4, checkpoint_steps=4)
        for x in executor:
            note(step(x))
        cstorch.save({name: part.state_dict() for name, part in parts.items()}, tmp_path / f"{steps}.mdl")
        found.append(cstorch.load(tmp_path / f"{steps}.mdl"))
    np.testing.assert_allclose(losses["system"], losses["eager"], rtol=1e-4)
    for name in ("first.weight", "second.weight"):
        first, last = (state["model"][f"{name}_mask"] for state in found)
        assert not torch.equal(first, last)
        assert torch.equal(last, eager.state_dict()[f"{name}_mask"])
        assert int(last.sum()) == last.numel() // 4
        assert not found[-1]["model"][name][~last].any()
    assert int(found[-1]["sparsity"]["step"]) == 8


def test_masks_next_to_an_optimizer_as_in_release_2_0(tmp_path: Path) -> None:
    def prepared() -> tuple[Small, Any, Any]:
        torch.manual_seed(3)
        model = Small()
        masks = sparse.configure_sparsity_optimizer(
            "set",
            model.named_parameters(),
            sparsity=0.5,
            init_method="topk",
            schedule={"freq": 1},
            param_name_patterns=[r"(first|second)\.weight"],
        )
        masks.hook_module(model)
        optimizer = sparse.SparsityWrapperOptimizer(optim.SGD(model.parameters(), lr=0.1), masks)
        return model, masks, optimizer

    model, masks, optimizer = prepared()
    dense = model.first.weight.detach().clone()
    masks.initialize_sparsity()
    assert torch.equal(model.first.weight_mask, topk_mask(dense, 0.5))
    scaler = amp.GradScaler("dynamic", init_scale=2.0, overflow_tolerance=0.0)
    schedule = optim.lr_scheduler.ConstantLR(optimizer, 0.01)
    for scale in (torch.inf, 1.0):
        amp.optimizer_step(model(torch.arange(5)).sum() * scale, optimizer, scaler)
        schedule.step()
    assert (int(masks.state_dict()["step"]), int(schedule.last_epoch)) == (1, 1)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)
    cstorch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.mdl")
    state = cstorch.load(tmp_path / "a.mdl")
    resumed, other, second = prepared()
    resumed.load_state_dict(state["model"])
    second.load_state_dict(state["optimizer"])
    other.initialize_sparsity()
    for key, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    assert int(other.state_dict()["step"]) == 1
    assert state["optimizer"]["sparsity"]["state"]["first.weight"]["mask"].dtype is torch.bool


def test_a_sparsity_that_cycles_changes_with_each_update(tmp_path: Path) -> None:
    config = {"algorithm": "gmp", "sparsity": [0.25, 0.5, 0.75], "update": {"freq": 2}}
    found = []
    for state in (None, tmp_path / "a.mdl"):
        model, algorithm = sparse_model(config)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        optimizer.apply(algorithm)
        if state is not None:
            algorithm.load_state_dict(cstorch.load(state))
        for _ in range(4):
            optimizer.step()
            found.append(1 - float(model.first.weight_mask.float().mean()))
        cstorch.save(algorithm.state_dict(), tmp_path / "a.mdl")
    assert found == [0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 0.25, 0.25]
    assert int(algorithm.state_dict()["sparsity"]["second.weight"]["index"]) == 4


class Saw(utils.HyperParameterSchedule):
    """A schedule of a program."""

    def __init__(self, init: float, period: int) -> None:
        self.init, self.period = init, period

    def compute(self, step: torch.Tensor) -> torch.Tensor:
        return self.init + 0.1 * (step % self.period).float()


class Replacing(sparse.DynamicSparsityAlgorithm):
    """An algorithm of a program, of the functions that the original documents."""

    def __init__(self, replaced: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replaced = replaced

    def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: Any) -> torch.Tensor:
        kept, count = utils.make_mask_drop_minimum(p.abs(), mask, self.replaced)
        return utils.make_mask_grow_maximum(p.abs() + 1, kept, sparsity, mask_nonzero=count)


def first_elements(weight: torch.Tensor, sparsity: torch.Tensor) -> torch.Tensor:
    """The first mask of a program, which reads the sparsity."""
    return (torch.arange(weight.numel()) >= round(weight.numel() * sparsity.item())).reshape(weight.shape)


def test_algorithms_and_schedules_of_a_program_have_names() -> None:
    config = {
        "algorithm": "replacing",
        "replaced": 0.25,
        "sparsity": {"type": "saw", "init": 0.5, "period": 2},
        "init_method": first_elements,
    }
    model, algorithm = sparse_model(config)
    (weight, *_) = weights(algorithm, model).values()
    assert isinstance(algorithm[0], Replacing)
    assert weight.mask.flatten().tolist() == [False] * 24 + [True] * 24
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.apply(algorithm)
    counts = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.arange(5)).sum().backward()
        optimizer.step()
        counts.append(int(weight.mask.sum()))
    assert counts == [24, 19, 24]
    assert not weight.mask.flatten()[24:].all()


def test_masks_by_scores_and_groups() -> None:
    score = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    rows, columns = utils.OutputGroupScoreShaper(2), utils.InputGroupScoreShaper(2)
    assert utils.make_mask_topk_sparsity(score, 0.5).tolist() == [[True, True], [False, False]]
    assert utils.make_mask_topk_sparsity(score, 0.5, rows).tolist() == [[False, True], [True, False]]
    assert utils.make_mask_topk_sparsity(score, torch.tensor(0.5), columns).tolist() == [
        [True, True],
        [False] * 2,
    ]
    kept, count = utils.make_mask_drop_minimum(score, score > -1, 0.5)
    assert (kept.tolist(), int(count)) == ([[False, True], [False, False]], 1)
    grown = utils.make_mask_grow_maximum(-score, kept, 0.5)
    assert grown.tolist() == [[False, True], [False, True]]
    assert init.random(score, 0.25, rows).sum(1).tolist() == [1, 1]
    assert init.topk(score, 0.75).tolist() == [[False, True], [False, False]]
