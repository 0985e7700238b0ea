"""Diffs of a call of DataLoader in the user's source."""

from __future__ import annotations

import textwrap

import pytest

from input_analyzer.source_changes import plan_changes
from input_rules.findings import Finding

HEAD = "import torch\n"


def changed(body: str, *recommended: str, line: int = 2, head: str = HEAD) -> list[str]:
    """The lines that a diff adds."""
    source = head + textwrap.dedent(body)
    findings = [
        Finding(f"rule-{number}", "warning", "DataLoader", f"data.py:{line}", "slow", text)
        for number, text in enumerate(recommended)
    ]
    text = plan_changes(findings, lambda path: source).diff
    return [row[1:] for row in text.splitlines() if row.startswith("+") and not row.startswith("+++")]


@pytest.mark.parametrize(
    ("before", "recommended", "after"),
    [
        ("l = DataLoader(d, 8)", "DataLoader(..., drop_last=True)", "l = DataLoader(d, 8, drop_last=True)"),
        (
            "return torch.utils.data.DataLoader(d, batch_size=8, num_workers=0)",
            "DataLoader(..., num_workers=4, persistent_workers=True)",
            "return torch.utils.data.DataLoader(d, batch_size=8, num_workers=4, persistent_workers=True)",
        ),
        (
            "l = DataLoader(d, 8, True, None, None, 1)",
            "DataLoader(..., num_workers=4)",
            "l = DataLoader(d, 8, True, None, None, 4)",
        ),
        (
            "l = DataLoader(d, shuffle=True)",
            "DataLoader(..., generator=torch.Generator().manual_seed(0))",
            "l = DataLoader(d, shuffle=True, generator=torch.Generator().manual_seed(0))",
        ),
        (
            "l = DataLoader(d, collate_fn=((lambda ä: s(ä))))  # (l)",
            "DataLoader(..., drop_last=True)",
            "l = DataLoader(d, collate_fn=((lambda ä: s(ä))), drop_last=True)  # (l)",
        ),
        (
            "l = DataLoader(d, prefetch_factor=(1))",
            "DataLoader(..., prefetch_factor=2, drop_last=True)",
            "l = DataLoader(d, prefetch_factor=(2), drop_last=True)",
        ),
    ],
)
def test_arguments_are_set(before: str, recommended: str, after: str) -> None:
    assert changed(before, recommended) == [after]


def test_several_findings_about_a_call_of_several_lines() -> None:
    body = """\
    loader = DataLoader(
        d,
        batch_size=8,
        pin_memory=True,
    )
    """
    assert changed(
        body,
        "DataLoader(..., drop_last=True)",
        "DataLoader(..., num_workers=2, persistent_workers=True)",
        "DataLoader(..., pin_memory=False)",
    ) == ["    pin_memory=False, drop_last=True, num_workers=2, persistent_workers=True,"]


@pytest.mark.parametrize(
    ("before", "recommended"),
    [
        ("l = DataLoader(d, drop_last=True)", "DataLoader(..., drop_last=True)"),
        ("l = DataLoader(d, **settings)", "DataLoader(..., drop_last=True)"),
        ("l = DataLoader(*settings)", "DataLoader(..., drop_last=True)"),
        ("l = DataLoader(a), DataLoader(b)", "DataLoader(..., drop_last=True)"),
        ("l = Loader(d)", "DataLoader(..., drop_last=True)"),
        ("l = DataLoader(d)", "DataLoader(..., batch_size=N) with the batch size of the training"),
        ("l = DataLoader(d for d in e)", "DataLoader(..., drop_last=True)"),
        ("l = DataLoader(d)", "DistributedSampler(dataset, num_replicas=tasks, rank=task)"),
    ],
)
def test_complicated_calls_are_unchanged(before: str, recommended: str) -> None:
    assert changed(before, recommended) == []


def test_parentheses_after_the_last_argument_may_be_on_separate_lines() -> None:
    body = """\
    l = DataLoader(
        d, collate_fn=(  # (
            stack
        ),
    )
    """
    assert changed(body, "DataLoader(..., drop_last=True)") == ["    ), drop_last=True,"]


def test_a_form_feed_is_no_line() -> None:
    head = "import torch\n\x0c\n"
    added = changed("l = DataLoader(d)", "DataLoader(..., drop_last=True)", line=3, head=head)
    assert added == ["l = DataLoader(d, drop_last=True)"]


def test_a_name_that_the_source_does_not_know_is_not_used() -> None:
    head = "from torch.utils.data import DataLoader\n"
    assert changed("l = DataLoader(d)", "DataLoader(..., generator=torch.Generator())", head=head) == []


def test_a_file_elsewhere_can_be_patched() -> None:
    recommended = "DataLoader(..., drop_last=True)"
    found = Finding("rule", "warning", "DataLoader", "/data/in.py:1", "slow", recommended)
    text = plan_changes([found], lambda path: "l = DataLoader(d)\n").diff
    assert text.startswith("--- a/data/in.py\n+++ b/data/in.py\n")
