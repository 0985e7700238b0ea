from __future__ import annotations

from cs_runtime.terminal import by_family, shortened

LOOPS = """\
Generated kernels, from loop nests; all others are kernels of the library:
  exp1 (elementwise)
    for i in 0..512: 1 arith op
    for j in 0..512: 2 arith ops
  reduce1 (reduction)
    for i in 0..512: 1 arith op, reduce over i"""


def layer_table(times_ms: list[float]) -> str:
    rule = "+------------+------------+"
    rows = [f"| layer{number:<5} | {ms:10,.1f} |" for number, ms in enumerate(times_ms)]
    rows.append(f"| all        | {sum(times_ms):10,.1f} |")
    return "\n".join([rule, "| Layer      | Compute ms |", rule, *rows, rule])


def test_a_terminal_has_neither_loops_nor_advice() -> None:
    notes = "All figures are estimates of time on the wafer.\nActive PEs: share of the fabric.\n"
    compiled = "Model:     model_fn\nPrecision: float32"
    advice = "To go faster:\n  buy another wafer"
    shown = shortened(f"head\n\n{compiled}\n\n{LOOPS}\n\nVerdict: good.\n\n{advice}\n\n{notes}")
    assert shown == f"head\nVerdict: good.\n{notes.splitlines()[0]}\n"
    assert shortened(f"Verdict: latency.\n{advice}\n") == "Verdict: latency.\n"  # of weight streaming


def test_of_many_layers_the_longest_are_shown() -> None:
    times_ms = [float(number * 37 % 50) for number in range(49)] + [1234.0]
    shown = shortened(f"head\n\n{layer_table(times_ms)}\n", rows=3)
    names = [line.split()[0] for line in shown.splitlines() if line.startswith("layer")]
    slowest = sorted(range(50), key=lambda number: -times_ms[number])[:3]
    assert names == [f"layer{number}" for number in sorted(slowest)]
    note, total = shown.splitlines()[-2:]
    assert note.startswith("... and 47 faster ones")
    assert total.split() == ["all", f"{sum(times_ms):,.1f}"]


def test_of_replicas_the_chosen_number_is_shown() -> None:
    copies = "Replicas: 4 copies of the model\n  One copy:   9.0 samples/s"
    tried = "Numbers of replicas that divide the batch:\n+---+\n| 4 |\n+---+"
    assert shortened(f"head\n\n{copies}\n{tried}\n\nVerdict: good.\n").splitlines() == [
        "head",
        "",
        *copies.splitlines(),
        "Verdict: good.",
    ]


def test_a_validation_tells_the_kernels_by_family() -> None:
    kernels = [("fc", False, 3), ("add", False, 1), ("fc", True, 10), ("add", False, 1)]
    assert by_family(kernels, "model_dir/kernels.txt").splitlines() == [
        "4 kernels for 15 ops, by family:",
        "  add     2 for 2 ops",
        "  fc      2 for 13 ops, 1 of them generated",
        "all of them, with your lines: model_dir/kernels.txt",
    ]
