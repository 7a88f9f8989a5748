"""The series of ages in docs/why/ages.md equals that of a real queue."""

import re
from dataclasses import replace

from scripts.ages_table import EXPERIMENTS, MINUTES, PAGE, series, table, written
from scripts.made_tables import DOCS


def test_the_table_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, series()) == page, "it is stale: make docs"


def test_a_change_makes_the_table_stale() -> None:
    found = {name: list(minutes) for name, minutes in series().items()}
    first = found["a"][0]
    found["a"][0] = replace(first, queue=replace(first.queue, oldest_message_age_seconds=61.0))
    assert table(found) != table(series())


def test_the_table_shows_the_resets_of_the_age() -> None:
    rows = [line.split(" | ") for line in table(series()).splitlines()[2:]]
    assert len(rows) == MINUTES
    at = {int(row[0].removeprefix("| ")): row[2:] for row in rows}
    assert len(at[1]) == len(EXPERIMENTS)
    assert [cell.split(" ")[0] for cell in at[5]] == ["300"] * 3
    assert [cell.split(" ")[0] for cell in at[6]] == ["0"] * 3  # the third failure
    assert [cell.split(" ")[0] for cell in at[11]] == ["300"] * 3
    assert [cell.split(" ")[0] for cell in at[12]] == ["0"] * 3  # the sixth
    assert [cell.split(" ")[0] for cell in at[15]] == ["0", "0", "180"]


# -- which of several values counts: the page agrees with rules and alarms

AGE = "queue_oldest_visible_message_age_seconds"
DEPLOY = PAGE.parents[2] / "deploy"


def documented() -> dict[str, str]:
    """Return the aggregation of several values by source, from the page's table."""
    return dict(re.findall(r'^\| `source="(exact|estimated)"` \| `(\w+) by ', PAGE.read_text(), re.MULTILINE))


def test_prometheus_rules_choose_the_value_that_the_page_names() -> None:
    rules = (DEPLOY / "prometheus/penstock.rules.yaml").read_text()
    taken = re.findall(rf'(\w+) by \([^)]*\) \(penstock_{AGE}{{source="(\w+)"}}\)', rules)
    assert (
        {source: aggregation for aggregation, source in taken} == documented() == {"exact": "max", "estimated": "min"}
    )


def test_the_dashboard_chooses_the_value_that_the_page_names() -> None:
    dashboard = (DEPLOY / "grafana/penstock.json").read_text()
    taken = re.findall(rf'(\w+) by \([^)]*\) \(penstock_{AGE}{{[^}}]*source=\\"(\w+)\\"}}\)', dashboard)
    assert len(taken) == dashboard.count(f"penstock_{AGE}") > 0
    assert {source: aggregation for aggregation, source in taken} == documented()


def test_cloudwatch_alarms_choose_the_value_that_the_page_names() -> None:
    """These alarms are for SQS, which has only estimates."""
    for file, pattern in {
        "cloudwatch/alarms.yaml": rf"MetricName: penstock_{AGE}.*?Stat: (\w+)",
        "terraform/alarms.tf": rf'"penstock_{AGE}".*?stat += "(\w+)"',
    }.items():
        (aggregation,) = re.findall(pattern, (DEPLOY / file).read_text(), re.DOTALL)
        assert aggregation[:3].lower() == documented()["estimated"]


def test_other_pages_name_the_same_choice_of_values() -> None:
    metrics = (DOCS / "run/metrics.md").read_text()
    assert '`max` of `source="exact"`, `min` of `source="estimated"`' in metrics
    alerts = (DOCS / "fix/alerts.md").read_text()
    assert "[the least of their estimates counts](../why/ages.md#which-of-several-counts)" in alerts
