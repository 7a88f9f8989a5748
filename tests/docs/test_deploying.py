"""docs/run/deploying.md names every file of deploy/, and its numbers are the code's."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.deploy.promql import ask
from tests.services.aws_server import AwsServer

from penstock.app.jobs.task_protection import EXPIRES_IN_MINUTES, RENEW_SECONDS
from penstock.app.system_health import dead_letter_queues
from penstock.brokers.sqs import SqsBroker
from penstock.operations.shutdown_budget import PLATFORMS, plan
from penstock.storage.aws import Aws

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/run/deploying.md").read_text(encoding="utf-8")
ALERTS = ROOT / "docs/fix/alerts.md"
SKIPPED = {".terraform", "__pycache__", "secrets"}  # created when the files are used


def files() -> list[Path]:
    found = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
    return [path for path in found if not SKIPPED & set(path.relative_to(DEPLOY).parts)]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_file_is_named(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    elsewhere = ALERTS.read_text(encoding="utf-8") if ALERTS.exists() else ""
    assert f"](../../{name})" in PAGE or path.name in elsewhere


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_has_its_seconds(name: str) -> None:
    platform = PLATFORMS[name]
    words = {"ecs": "ECS on EC2", "fargate": "ECS on Fargate", "docker": "Docker, Compose"}.get(name, name)
    (row,) = [line for line in PAGE.splitlines() if line.lower().startswith(f"| {words.lower()} |")]
    assert f"{platform.default_seconds:g} by default" in row
    assert platform.max_seconds is None or f"{platform.max_seconds:g} at most" in row
    assert platform.line.split(":")[0].split("=")[0].strip('"') in row
    assert ("preStop" in row) is platform.pre_stop


def test_the_table_of_stop_phases_equals_the_plan() -> None:
    stop_seconds = 100.0
    parts = {part.name.split(":")[0]: part.seconds for part in plan("ecs", platform_seconds=stop_seconds).parts}
    documented = {row[0]: row[1] for row in re.findall(r"^\| ([a-z ]+) \| (S - \d+|\d+) \|", PAGE, re.MULTILINE)}
    rest = stop_seconds - parts["drain"]
    assert documented == {
        "fetch no more": f"{parts['stop fetching']:g}",
        "drain": f"S - {rest:g}",
        "release": f"{parts['release unfinished messages']:g}",
        "flush": f"{parts['flush settlements, logs, reports']:g}",
        "margin": f"{parts['margin']:g}",
    }


def test_the_duration_of_task_protection_is_documented() -> None:
    words = {3: "three"}
    assert RENEW_SECONDS == 60.0
    assert f"asks again each minute, for {words[EXPIRES_IN_MINUTES]} minutes" in PAGE


# -- examples


def fenced(language: str, about: str) -> str:
    """Return the example in that language that contains a text."""
    (found,) = [
        one for one in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if about in one
    ]
    return str(found)


def test_prometheus_accepts_the_job_and_the_job_selects_our_pods(tmp_path: Path) -> None:
    example = fenced("yaml", "kubernetes_sd_configs")
    (job,) = yaml.safe_load(example)["scrape_configs"]
    # Not every promtool knows Kubernetes, so it checks only the rest.
    assert job["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["shop"]}}]
    rest = {name: value for name, value in job.items() if name != "kubernetes_sd_configs"}
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump({"scrape_configs": [rest]}))
    done = ask("check", "config", "--syntax-only", tmp_path / "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "penstock" in job["job_name"]
    keep = job["relabel_configs"][0]
    assert keep["source_labels"] == [
        "__meta_kubernetes_pod_label_app_kubernetes_io_name",
        "__meta_kubernetes_pod_container_port_name",
    ]
    deployment, *_ = yaml.safe_load_all((DEPLOY / "kubernetes/worker.yaml").read_text())
    template = deployment["spec"]["template"]
    (port,) = template["spec"]["containers"][0]["ports"]
    target = f"{template['metadata']['labels']['app.kubernetes.io/name']};{port['name']}"
    assert re.fullmatch(keep["regex"], target), target


def test_the_example_creates_the_queues_of_the_local_sqs(moto: AwsServer) -> None:
    (program,) = re.findall(r"aws python -c '(.*?)'", fenced("sh", "--profile aws"), re.DOTALL)
    there = "http://127.0.0.1:5000"
    assert there in program
    assert '"127.0.0.1:5000:5000"' in (DEPLOY / "docker/compose.yaml").read_text()
    exec(program.replace(there, moto.url))
    env = (DEPLOY / "docker/penstock.env.example").read_text()
    region = re.search(r"sqs://([\w-]+) into secrets/penstock_broker", env)
    assert region is not None
    broker = SqsBroker(Aws(region=region[1], endpoint_url=moto.url), holder="docs")
    try:
        queues = ("orders", *dead_letter_queues(broker, "orders"))
        assert [broker.stats(queue).visible for queue in queues] == [0, 0, 0]
    finally:
        broker.close()


def test_the_execution_role_may_read_the_secrets_of_the_task() -> None:
    (statement,) = json.loads(fenced("json", "secretsmanager"))["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Allow", "secretsmanager:GetSecretValue")
    task = json.loads((DEPLOY / "ecs/worker.task.json").read_text())
    (container,) = task["containerDefinitions"]
    assert {secret["valueFrom"] for secret in container["secrets"]} == {statement["Resource"]}
    role = task["executionRoleArn"].rpartition("/")[2]
    assert f"--role-name {role} " in fenced("sh", "create-role")


def test_the_trust_policy_in_a_shell_command_is_valid() -> None:
    (policy,) = re.findall(r"--assume-role-policy-document '(.*?)'", fenced("sh", "create-role"), re.DOTALL)
    (statement,) = json.loads(policy)["Statement"]
    assert (statement["Principal"], statement["Action"]) == ({"Service": "ecs-tasks.amazonaws.com"}, "sts:AssumeRole")


def test_terraform_and_manifests_name_the_same_service_accounts() -> None:
    documented = dict(re.findall(r'^  (\w+) += "shop:([\w-]+)"$', fenced("hcl", "service_accounts"), re.MULTILINE))
    manifests = yaml.safe_load_all((DEPLOY / "kubernetes/config.yaml").read_text())
    roles = {
        one["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].rpartition("/orders-")[2]: one["metadata"]["name"]
        for one in manifests
        if one["kind"] == "ServiceAccount"
    }
    assert documented == roles


def test_the_texts_that_the_commands_replace_are_in_the_manifests() -> None:
    for old, files in re.findall(r"sed -i 's\|([^|]+)\|[^|]+\|' (\S+)", fenced("sh", "create namespace")):
        found = sorted((DEPLOY / "kubernetes").glob(files))
        assert any(old in path.read_text() for path in found), old
