"""The alert rules: promtool accepts them, their tests pass, their metrics exist, and each has a runbook."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.promql import ask, problems

from penstock.config import Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/prometheus"
RULES = FOLDER / "penstock.rules.yaml"
TESTS = FOLDER / "penstock.rules.test.yaml"
PAGE = ROOT / "docs/fix/alerts.md"
RUNBOOK = "docs/fix/alerts.md#"
RECORDED = re.compile(r"\bpenstock:[\w:]+")


def groups() -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return found


def rules() -> Iterator[Mapping[str, Any]]:
    for group in groups():
        yield from group["rules"]


def alerts() -> Sequence[Mapping[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def alert(name: str) -> Mapping[str, Any]:
    return next(rule for rule in alerts() if rule["alert"] == name)


def named(rule: Mapping[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def threshold(name: str) -> float:
    """Return the recorded value, with products evaluated."""
    expression = next(rule["expr"] for rule in rules() if rule.get("record") == f"penstock:{name}")
    product = 1.0
    for factor in str(expression).removeprefix("vector(").removesuffix(")").split("*"):
        product *= float(factor)
    return product


# -- promtool


def test_promtool_accepts_the_rules() -> None:
    done = ask("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_of_the_alerts_pass() -> None:
    done = ask("test", "rules", TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("about", "right", "wrong"),
    [
        # Other deployments with a queue of that name must not count.
        ("QueueUnconsumed", "unless penstock:messages_received", "unless on (queue) penstock:messages_received"),
        # A queue that was never served is in no counter, and a worker without free slots cannot receive.
        (
            "QueueUnconsumed",
            "unless penstock:messages_received:increase5m >",
            "and penstock:messages_received:increase5m <=",
        ),
        ("QueueUnconsumed", ">= sum by (cluster, namespace, environment, queue) (penstock_worker_slots)", "> 10000"),
        # Counts of a young process, first counts of an old one, and counts after a gap in scraping.
        ("LeasesOrphaned", "time() - process_start_time_seconds < 900", "time() - process_start_time_seconds < -1"),
        ("LeasesLost", "up offset 15m == 1", "up offset 15m > 1"),
        ("LeasesLost", "up offset 15m == 1", "up >= 0"),
        ("QueueLate", "environment, queue) (penstock_queue_oldest", "environment) (penstock_queue_oldest"),
        ("QueueLate", "for: 5m\n        labels: {severity: page}", "labels: {severity: page}"),
        ("MonitorDown", "last_over_time(penstock_monitor_up[1h])", "penstock_monitor_up"),
        ("MonitorDown", "absent(penstock_monitor_up)", "absent(up)"),
        ("MonitorShortSighted", 'source=~"broker|ledger"', 'source=~".+"'),
        ("QuarantineHigh", "or penstock:quarantined_lines:increase1h * 0", ""),
        ("HandlerBroken", 'increase10m{outcome="failed"}) > 0\n        for', "increase10m) > 0\n        for"),
        ("DeadLettersNearEnd", "retention_seconds) / 2", "retention_seconds)"),
        ("WorkerStalled", "messages >= penstock_worker_slots", "messages > 10000"),
        ("TargetDown", "last_over_time(penstock_worker_slots[1d])", "penstock_worker_slots"),
        ("TargetDown", "last_over_time(penstock_monitor_up[1d])", "penstock_monitor_up"),
        ("TargetDown", "up == 0 and on (job, instance) (", "up == 0 unless on (job, instance) ("),
    ],
)
def test_the_tests_of_the_alerts_find_mistakes(tmp_path: Path, about: str, right: str, wrong: str) -> None:
    text = RULES.read_text(encoding="utf-8")
    assert right in text
    (tmp_path / RULES.name).write_text(text.replace(right, wrong), encoding="utf-8")
    tests = yaml.safe_load(TESTS.read_text(encoding="utf-8"))
    tests["tests"] = [test for test in tests["tests"] if about in str(test["promql_expr_test"])]
    (tmp_path / TESTS.name).write_text(yaml.safe_dump(tests), encoding="utf-8")
    assert ask("check", "rules", tmp_path / RULES.name).returncode == 0
    assert ask("test", "rules", tmp_path / TESTS.name).returncode == 1


def test_a_queue_with_its_own_threshold_has_only_that_one(tmp_path: Path) -> None:
    """Uncomment the example in the file."""
    text = RULES.read_text(encoding="utf-8")
    own = re.search(r"( +)# - record: penstock:queue_late_after_seconds\n(?: +# .*\n)+", text)
    assert own is not None
    (tmp_path / RULES.name).write_text(text.replace(own.group(), own.group().replace("# ", "")), encoding="utf-8")
    age = "penstock_queue_oldest_visible_message_age_seconds"
    # The queue orders is late after 60 s, all others after 300 s.
    test = {
        "rule_files": [RULES.name],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f'{age}{{queue="orders", source="exact"}}', "values": "61x20"},
                    {"series": f'{age}{{queue="mails", source="exact"}}', "values": "299x20"},
                    {"series": f'{age}{{queue="audit", source="exact"}}', "values": "301x20"},
                ],
                "promql_expr_test": [
                    {
                        "expr": 'sum by (queue) (ALERTS{alertname="PenstockQueueLate", alertstate="firing"})',
                        "eval_time": "10m",
                        "exp_samples": [
                            {"labels": '{queue="orders"}', "value": 1},
                            {"labels": '{queue="audit"}', "value": 1},
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / TESTS.name).write_text(yaml.safe_dump(test), encoding="utf-8")
    done = ask("test", "rules", tmp_path / TESTS.name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tested_firing_and_not_firing() -> None:
    """Each alert is expected at one time, and expected to be absent at another."""
    expected: dict[bool, set[str]] = {True: set(), False: set()}
    for test in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]:
        for one in test["promql_expr_test"]:
            text = " ".join(sample["labels"] for sample in one["exp_samples"]) + one["expr"]
            pattern = re.findall(r'alertname=~?"([^"]+)"', text)
            for name in (rule["alert"] for rule in alerts()):
                if any(re.fullmatch(each, name) for each in pattern):
                    expected[bool(one["exp_samples"])].add(name)
    missing_when_quiet = {rule["alert"] for rule in alerts()} - expected[False]
    assert {rule["alert"] for rule in alerts()} - expected[True] == set()
    # The tests of these have series that do not fire beside the ones that do.
    assert missing_when_quiet <= {"PenstockTargetDown", "PenstockWorkerLags", "PenstockQuarantineHigh"}


# -- names in the rules


@pytest.mark.parametrize("rule", list(rules()), ids=named)
def test_metrics_and_labels_of_a_rule_are_in_the_catalogue(rule: Mapping[str, Any]) -> None:
    expression = RECORDED.sub("0", str(rule["expr"])) if RECORDED.search(str(rule["expr"])) else str(rule["expr"])
    ours = problems(expression)
    if expression != rule["expr"]:  # uses recorded rules, whose labels are checked with those rules
        ours = [problem for problem in ours if "nothing here has" not in problem]
    assert not ours


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("penstock_queue_message > 0", "there is no metric penstock_queue_message"),
        ("sum(penstock_loop_lag_seconds)", "there is no metric penstock_loop_lag_seconds"),
        ('penstock_queue_messages{state="waiting"}', "state of penstock_queue_messages never says waiting"),
        ('penstock_queue_messages{state=~"visible|lost"}', "state of penstock_queue_messages never says lost"),
        ('penstock_dead_letters{handler="a"}', "penstock_dead_letters has no label handler"),
        ("sum by (pipeline) (penstock_dead_letters)", "nothing here has the label pipeline"),
        ("rate(penstock_handler_duration_seconds_count{le='1'}[5m])", None),
        ('penstock_handler_duration_seconds_count{le="1"}', "penstock_handler_duration_seconds_count has no label le"),
    ],
)
def test_names_that_do_not_exist_are_found(expression: str, problem: str | None) -> None:
    assert problems(expression) == ([] if problem is None else [problem])


def test_recorded_series_exist_and_are_used() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    # Thresholds of users, none by default.
    recorded.add("penstock:queue_late_after_seconds")
    taken = {name for rule in rules() for name in RECORDED.findall(str(rule["expr"]))}
    assert taken <= recorded
    assert recorded <= taken  # every recorded series is used


def test_every_threshold_is_a_number_with_a_comment_above_it() -> None:
    lines = RULES.read_text(encoding="utf-8").splitlines()
    (group,) = [group for group in groups() if group["name"] == "penstock.thresholds"]
    for rule in group["rules"]:
        assert re.fullmatch(r"vector\([\d. *]+\)", str(rule["expr"])), rule
        above = lines[next(at for at, line in enumerate(lines) if f"- record: {rule['record']}" in line) - 1]
        assert above.strip().startswith("# "), rule["record"]


def test_thresholds_are_those_of_the_settings() -> None:
    assert threshold("late_after_seconds") == Settings.model_fields["alerts_lagging_after"].default
    assert threshold("dead_letter_retention_seconds") == 14 * 86_400
    warned_after = Settings.model_fields["dead_letters_warn_share"].default
    assert f"/ {1 / warned_after:g}\n" in alert("PenstockDeadLettersNearEnd")["expr"]


# -- texts of the alerts


@pytest.mark.parametrize("rule", alerts(), ids=named)
def test_an_alert_has_a_severity_texts_and_a_runbook(rule: Mapping[str, Any]) -> None:
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("page", "warn")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == RUNBOOK + rule["alert"].lower()
    for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
        assert text.endswith(".")


@pytest.mark.parametrize("rule", alerts(), ids=named)
def test_the_texts_of_an_alert_use_labels_of_its_expression(rule: Mapping[str, Any]) -> None:
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    expression = str(rule["expr"])
    for name in RECORDED.findall(expression):
        expression += next((str(one["expr"]) for one in rules() if one.get("record") == name), "")
    if "by (" in expression:
        left = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(",")}
    else:
        left = {"job", "instance"}
    assert used <= left


def test_only_urgent_alerts_page() -> None:
    paging = {rule["alert"] for rule in alerts() if rule["labels"]["severity"] == "page"}
    assert paging == {
        "PenstockQueueLate",
        "PenstockQueueUnconsumed",
        "PenstockDeadLettersForPeople",
        "PenstockHandlerBroken",
        "PenstockObjectsOverdue",
        "PenstockObjectsMissing",
        "PenstockMonitorDown",
        "PenstockMonitorBlind",
    }


# -- the page of runbooks


def sections() -> Mapping[str, str]:
    """Return the text below each heading of the second and third level."""
    parts = re.split(r"^#{2,3} (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_alert_has_a_section_and_each_section_of_that_kind_an_alert() -> None:
    written = {heading for heading in sections() if heading.startswith("Penstock")}
    assert written == {rule["alert"] for rule in alerts()}


@pytest.mark.parametrize("rule", alerts(), ids=named)
def test_a_runbook_section_is_complete(rule: Mapping[str, Any]) -> None:
    text = sections()[rule["alert"]]
    for part in ("**Means.**", "**Look.**", "**Do.**", "**Harmless**"):
        assert part in text, part
    assert text.lstrip().startswith(f"*{rule['labels']['severity']}*")


def test_the_guide_links_to_the_page() -> None:
    assert "(alerts.md" in (ROOT / "docs/fix/troubleshooting.md").read_text(encoding="utf-8")
