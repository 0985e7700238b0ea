from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cs_system.monitoring.board import Snapshot
from cs_system.monitoring.metrics import MAX_WORKERS, make_registry
from tests.unit.cs_system.monitoring.snapshots import IDLE, INFO, RUN, SNAPSHOT

CONFIGS = Path(__file__).parents[4] / "configs"
PROMTOOL = shutil.which("promtool")
# Metrics of Prometheus itself.
GENERAL = {"up"}


def scrape(snapshot: Snapshot) -> str:
    return generate_latest(make_registry(lambda: snapshot)).decode()


def samples(snapshot: Snapshot) -> dict[tuple[str, str], float]:
    """Samples of the system by name and labels."""
    return {
        (
            sample.name,
            ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(scrape(snapshot))
        for sample in family.samples
        if sample.name.startswith("cs_system")
    }


def names() -> set[str]:
    return {
        sample.name
        for family in text_string_to_metric_families(scrape(SNAPSHOT))
        for sample in family.samples
    }


def test_the_figures_of_a_run_are_metrics():
    found = samples(SNAPSHOT)
    expected = {
        ("cs_system_state", "state=running"): 1,
        ("cs_system_state", "state=idle"): 0,
        ("cs_system_queued_jobs", ""): 1,
        ("cs_system_reservations_total", ""): 3,
        ("cs_system_steps_total", ""): 5000,
        ("cs_system_samples_total", ""): 1_280_000,
        ("cs_system_input_bytes_total", ""): 50_000_000,
        ("cs_system_input_wait_seconds_total", ""): 12.5,
        ("cs_system_wafer_seconds_total", ""): 3600,
        ("cs_system_memoryx_bytes_total", "direction=to_wafer"): 10_000,
        ("cs_system_run_step", ""): 1200,
        ("cs_system_run_loss", ""): 0.25,
        ("cs_system_run_input_bound", ""): 1,
        ("cs_system_worker_connected", "worker=0"): 1,
        ("cs_system_worker_connected", "worker=1"): 0,
        ("cs_system_worker_reconnects_total", "worker=1"): 2,
        ("cs_system_worker_queue_batches", "worker=0"): 16,
        ("cs_system_worker_input_wait_ratio", "worker=1"): 0.4,
    }
    assert {key: found.get(key) for key in expected} == expected


def test_an_idle_system_has_no_metrics_of_a_run():
    found = samples(IDLE)
    assert found["cs_system_state", "state=idle"] == 1
    assert not [name for name, _ in found if name.startswith(("cs_system_run", "cs_system_worker"))]


def test_names_and_units_follow_the_conventions_of_prometheus():
    registry = make_registry(lambda: SNAPSHOT)
    for family in registry.collect():
        assert family.documentation.endswith("."), family.name
        assert not re.search(r"milli|micro|_ms\b|_mb\b|percent|minutes|hours", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
    # The strict format refuses what is not allowed.
    assert generate_openmetrics(registry).endswith(b"# EOF\n")


def test_labels_have_a_bounded_number_of_values():
    workers = tuple(replace(RUN.workers[0], worker=index) for index in range(5000))
    snapshot = replace(SNAPSHOT, info=replace(INFO, run=replace(RUN, workers=workers)))
    assert len([1 for name, _ in samples(snapshot) if name == "cs_system_worker_connected"]) == MAX_WORKERS
    # Neither jobs nor hosts nor owners become labels: their number has no limit.
    assert not re.search("job-7|node1|ada", scrape(SNAPSHOT))


def metrics_of(expression: str) -> set[str]:
    """Names of the metrics in an expression: words that are no function, label or keyword."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(on|by|ignoring)\s*\([^)]*\)|\"[^\"]*\"", "", expression)
    words = set(re.findall(r"\b[a-z_:][a-z0-9_:]*\b(?!\s*\()", bare))
    return words - {"and", "or", "unless"}


def alerts() -> list[dict[str, str]]:
    document = yaml.safe_load((CONFIGS / "prometheus-alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((CONFIGS / "grafana-dashboard.json").read_text())
    variables = [
        variable["query"]["query"].removeprefix("label_values(").partition(",")[0]
        for variable in dashboard["templating"]["list"]
        if isinstance(variable["query"], dict)
    ]
    return variables + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", [rule["expr"] for rule in alerts()] + dashboard_expressions())
def test_every_expression_of_alerts_and_dashboard_has_existing_metrics(expression):
    used = metrics_of(expression)
    assert used, expression
    assert used <= names() | GENERAL


def test_panels_of_the_dashboard_do_not_overlap():
    panels = json.loads((CONFIGS / "grafana-dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool; on Debian: apt-get install -y prometheus")
def test_promtool_accepts_alerts_and_metrics(tmp_path):
    assert PROMTOOL is not None
    rules = CONFIGS / "prometheus-alerts.yml"
    subprocess.run([PROMTOOL, "check", "rules", str(rules)], check=True, capture_output=True)
    text = scrape(SNAPSHOT)
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
