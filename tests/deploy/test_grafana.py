"""The dashboard: its layout is valid, promtool parses its queries, and their metrics exist."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.promql import ask, metric_of, problems, selectors
from tests.deploy.tools import DEPLOY

from penstock.config import Settings
from penstock.monitoring.metrics.catalogue import METRICS

FILE = DEPLOY / "grafana/penstock.json"
COLUMNS = 24
OLDEST_SCHEMA = 36  # the first in which a data source is named by type and uid
KINDS = {"row", "stat", "table", "timeseries", "heatmap"}
# Possible values of Grafana's variables.
FILLED_IN = {"$__rate_interval": "5m", "$job": ".*", "$queue": ".*", "$pipeline": ".*", "$late": "300"}


def dashboard() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def panels() -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = dashboard()["panels"]
    return found


def titled(panel: Mapping[str, Any]) -> str:
    return str(panel["title"])


def panels_with_queries() -> Sequence[Mapping[str, Any]]:
    return [panel for panel in panels() if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each query with the panel, annotation or variable that it belongs to."""
    for panel in panels_with_queries():
        yield from ((titled(panel), target["expr"]) for target in panel["targets"])
    yield from ((one["name"], one["expr"]) for one in dashboard()["annotations"]["list"] if "expr" in one)
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            selector = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert selector is not None
            yield variable["name"], f"count by ({selector[2]}) ({selector[1]})"


def filled_in(expression: str) -> str:
    for name, value in FILLED_IN.items():
        expression = re.sub(rf"{re.escape(name)}\b", value, expression)
    return expression


# -- Grafana


def test_the_dashboard_can_be_provisioned() -> None:
    found = dashboard()
    assert (found["uid"], found["title"]) == ("penstock", "Penstock")
    assert found["schemaVersion"] >= OLDEST_SCHEMA
    assert not {"id", "__inputs", "__requires"} & found.keys()  # fields of an export for manual import
    assert {panel["type"] for panel in panels()} <= KINDS


def test_every_panel_has_a_unique_id_and_title() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    assert len({titled(panel) for panel in panels()}) == len(ids)


def test_no_panels_overlap_and_all_are_inside() -> None:
    places = [panel["gridPos"] for panel in panels()]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        assert place["h"] >= 1
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


def test_rows_leave_no_gap() -> None:
    lines = {
        y for panel in panels() for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    }
    assert lines == set(range(max(lines) + 1))


def test_the_status_row_comes_first() -> None:
    first, *rest = panels()
    assert (first["type"], first["gridPos"]["y"]) == ("row", 0)
    assert [titled(panel) for panel in rest[:4]] == ["Late", "Lost", "Dead, for people", "Unconsumed"]
    assert {panel["gridPos"]["y"] for panel in rest[:6]} == {1}


@pytest.mark.parametrize("panel", panels_with_queries(), ids=titled)
def test_a_panel_uses_the_chosen_source_and_has_a_description(panel: Mapping[str, Any]) -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["datasource"] == source
    assert all(target["datasource"] == source for target in panel["targets"])
    assert panel["description"].endswith(".")
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_all_variables_are_declared_and_used() -> None:
    declared = {variable["name"] for variable in dashboard()["templating"]["list"]}
    text = FILE.read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?(?!_)(\w+)", text))
    assert declared == used == {"datasource", "job", "queue", "pipeline", "late"}


def test_the_variable_late_is_the_default_of_the_setting() -> None:
    (late,) = [one for one in dashboard()["templating"]["list"] if one["name"] == "late"]
    assert (
        float(late["query"]) == float(late["current"]["value"]) == Settings.model_fields["alerts_lagging_after"].default
    )


# -- its queries


def check(folder: Path, queries: Mapping[str, str]) -> str:
    """Return promtool's errors about these expressions, as rules; empty if there are none."""
    rules = [{"record": f"queries:{at}", "expr": expression} for at, expression in enumerate(queries.values())]
    file = folder / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    done = ask("check", "rules", file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_promtool_accepts_every_expression(tmp_path: Path) -> None:
    queries = {f"{name} {at}": filled_in(expression) for at, (name, expression) in enumerate(expressions())}
    assert len(queries) > 50
    assert not [expression for expression in queries.values() if "$" in expression]
    assert check(tmp_path, queries) == ""


@pytest.mark.parametrize("expression", ["sum by (queue) (up", "rate(up)", "up[$__interval]", "sumby(up)"])
def test_promtool_finds_mistakes(tmp_path: Path, expression: str) -> None:
    assert check(tmp_path, {"": expression})


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_metrics_and_labels_of_an_expression_are_in_the_catalogue(name: str, expression: str) -> None:
    # Alerts are not in the catalogue. For a selector with several names, only the names are checked.
    plain = re.sub(r"ALERTS\{[^}]*\}", "vector(1)", expression)
    selected = re.findall(r'\{__name__=~"([^"]+)"', plain)
    for names in selected:
        assert all(metric_of(one) for one in names.split("|")), (name, names)
    if not selected:
        assert not problems(filled_in(plain)), name


def test_every_metric_has_a_panel() -> None:
    found = [metric_of(selector.name) for _, expression in expressions() for selector in selectors(expression)]
    assert set(METRICS) - {metric.name for metric in found if metric is not None} == set()


@pytest.mark.parametrize("panel", panels_with_queries(), ids=titled)
def test_a_legend_uses_labels_of_its_expression(panel: Mapping[str, Any]) -> None:
    for target in panel["targets"]:
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        left = {label.strip() for one in re.findall(r"\bby \(([^)]*)\)", target["expr"]) for label in one.split(",")}
        assert used <= (left or {"instance", "job"})


def test_counters_are_shown_only_as_rates_or_increases() -> None:
    """Counters only grow, and start at zero with each process."""
    for title, expression in expressions():
        for name in re.findall(r"(?<!\()\b(penstock_\w+_total)\b(?!\|)", expression):
            inside = re.search(rf"(?:rate|increase)\({name}\{{[^}}]*\}}\[[^\]]+\]\)", expression)
            assert inside or "__name__" in expression, (title, name)


def test_the_alert_annotation_matches_all_our_alerts() -> None:
    (alerts,) = [one for one in dashboard()["annotations"]["list"] if one["name"] == "Alerts"]
    rules = yaml.safe_load((DEPLOY / "prometheus/penstock.rules.yaml").read_text(encoding="utf-8"))
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    pattern = re.search(r'alertname=~"([^"]+)"', alerts["expr"])
    assert pattern is not None
    assert all(re.fullmatch(pattern[1], name) for name in names)
