"""Manifests: Kubernetes' own schemas, time to stop, probes, the restricted profile, and KEDA's fields."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.budgets import check
from tests.deploy.tools import DEPLOY, run

from penstock.config import load_settings, unknown_variables
from penstock.monitoring.metrics.catalogue import METRICS

FOLDER = DEPLOY / "kubernetes"
CORE = ("config", "networkpolicy", "operator", "worker")
OLDEST, NEWEST = "1.27", "1.33"  # of Kubernetes; unhealthyPodEvictionPolicy is enabled by default since 1.27


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


def only(name: str, kind: str) -> dict[str, Any]:
    (found,) = [one for one in documents(name) if one["kind"] == kind]
    return found


def pod(kind: str) -> dict[str, Any]:
    if kind == "operator":
        alone: dict[str, Any] = only(kind, "Pod")["spec"]
        return alone
    found: dict[str, Any] = only(kind, "Deployment")["spec"]["template"]["spec"]
    return found


def container(kind: str) -> dict[str, Any]:
    (found,) = pod(kind)["containers"]
    named: dict[str, Any] = found
    return named


def settings() -> dict[str, str]:
    found: dict[str, str] = only("config", "ConfigMap")["data"]
    return found


def test_every_manifest_is_checked_and_one_has_a_deployment() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {*CORE, "keda", "podmonitor"}
    assert [name for name in CORE if any(one["kind"] == "Deployment" for one in documents(name))] == ["worker"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", CORE)
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    done = run("kubernetes-validate", "--strict", "--kubernetes-version", version, FOLDER / f"{name}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("terminationGracePeriodSeconds", "terminationGraceSeconds"),
        ("replicas: 3", "replicas: three"),
        ("failureThreshold: 4", "failures: 4"),
    ],
)
def test_the_schemas_find_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = (FOLDER / "worker.yaml").read_text()
    assert right in text
    spoilt = tmp_path / "worker.yaml"
    spoilt.write_text(text.replace(right, wrong))
    assert run("kubernetes-validate", "--strict", "--kubernetes-version", NEWEST, spoilt).returncode != 0


def test_kubernetes_waits_for_the_stop_timeout() -> None:
    check(
        (FOLDER / "worker.yaml").read_text(),
        "kubernetes",
        granted_seconds=pod("worker")["terminationGracePeriodSeconds"],
        setting=settings()["PENSTOCK_WORKER_STOP_TIMEOUT"],
    )
    assert "lifecycle" not in container("worker")  # the seconds of a preStop hook would have to be added


def test_probes_use_the_health_endpoints() -> None:
    found = container("worker")
    (port,) = found["ports"]
    assert port == {"name": "metrics", "containerPort": 9464}
    asked = {probe: found[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert asked == {
        "startupProbe": {"path": "/startupz", "port": "metrics"},
        "livenessProbe": {"path": "/livez", "port": "metrics"},
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
    }
    assert found["args"] == ["worker", "shop:app"]
    assert "command" not in found  # the image's entry point is tini, without a shell
    annotations = only("worker", "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


@pytest.mark.parametrize("kind", ["worker", "operator"])
def test_pods_fit_the_restricted_profile(kind: str) -> None:
    found, whole = container(kind), pod(kind)
    assert (whole["securityContext"]["runAsNonRoot"], whole["securityContext"]["runAsUser"]) == (True, 10_001)
    assert whole["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (whole["automountServiceAccountToken"], whole["enableServiceLinks"]) == (False, False)
    assert found["resources"]["limits"]["memory"] == found["resources"]["requests"]["memory"]
    assert {one["name"] for one in found["volumeMounts"]} == {one["name"] for one in whole["volumes"]}


def test_names_refer_to_existing_resources() -> None:
    deployment = only("worker", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    accounts = {one["metadata"]["name"] for one in documents("config") if one["kind"] == "ServiceAccount"}
    assert accounts == {pod(kind)["serviceAccountName"] for kind in ("worker", "operator")}
    settings_map = only("config", "ConfigMap")["metadata"]["name"]
    assert container("worker")["envFrom"] == [{"configMapRef": {"name": settings_map}}]
    (secret,) = [one["secret"]["secretName"] for one in pod("worker")["volumes"] if "secret" in one]
    assert secret == only("config", "Secret")["metadata"]["name"]
    budget = only("worker", "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_the_operators_pod_has_the_workers_configuration_and_ends_after_an_hour() -> None:
    found, whole = container("operator"), pod("operator")
    same = ("image", "envFrom", "volumeMounts")
    assert {key: found[key] for key in same} == {key: container("worker")[key] for key in same}
    assert whole["volumes"] == pod("worker")["volumes"]
    accounts = {one["metadata"]["name"]: one for one in documents("config") if one["kind"] == "ServiceAccount"}
    role = accounts[whole["serviceAccountName"]]["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
    assert role.endswith(":role/orders-operator")
    assert found["command"] == ["tini", "--", "sleep", "infinity"]  # ends at SIGTERM; sleep alone would not
    assert (whole["restartPolicy"], whole["activeDeadlineSeconds"]) == ("Never", 3_600)
    assert "ports" not in found  # it is not scraped


def test_uncommenting_allows_a_collector(tmp_path: Path) -> None:
    text = (FOLDER / "networkpolicy.yaml").read_text()
    example = re.search(r"^    # - to:\n(?:    #   .*\n)+", text, re.MULTILINE)
    assert example is not None
    allowed = tmp_path / "networkpolicy.yaml"
    allowed.write_text(text.replace(example[0], example[0].replace("    # ", "    ")))
    assert yaml.safe_load(allowed.read_text())["spec"]["egress"][-1]["ports"] == [{"port": 4318, "protocol": "TCP"}]
    done = run("kubernetes-validate", "--strict", "--kubernetes-version", NEWEST, allowed)
    assert done.returncode == 0, done.stdout + done.stderr


# --- Prometheus's operator: its schema is not among those of Kubernetes.


def test_the_pod_monitor_selects_the_workers() -> None:
    found = only("podmonitor", "PodMonitor")
    assert found["apiVersion"] == "monitoring.coreos.com/v1"
    assert "penstock" in found["metadata"]["name"]  # it becomes the job's name, which PenstockTargetDown uses
    assert found["spec"].keys() == {"selector", "podMetricsEndpoints"}
    (endpoint,) = found["spec"]["podMetricsEndpoints"]
    labels = only("worker", "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert endpoint["port"] == container("worker")["ports"][0]["name"]


def test_every_variable_and_every_secret_is_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in settings().items():
        monkeypatch.setenv(name, value)
    for name, value in only("config", "Secret")["stringData"].items():
        (tmp_path / name).write_text(value)
    (mounted,) = [one for one in container("worker")["volumeMounts"] if one["name"] == "secrets"]
    assert settings()["PENSTOCK_SECRETS_DIR"] == mounted["mountPath"]
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(tmp_path))
    found = load_settings()
    assert unknown_variables() == []
    assert found.ledger.startswith("postgresql://")
    assert found.dead_letters_replay is True


def test_a_deploy_starts_new_workers_before_it_stops_old_ones() -> None:
    assert only("worker", "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert only("worker", "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


# --- KEDA: its schema is not among those of Kubernetes, so these are the fields of its documentation.

SPEC = {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "fallback", "advanced", "triggers"}
PROMETHEUS = {"serverAddress", "query", "threshold", "ignoreNullValues"}


def test_workers_are_scaled_by_waiting_messages_and_messages_in_flight() -> None:
    scaled = only("keda", "ScaledObject")
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert scaled["spec"].keys() == SPEC
    assert scaled["spec"]["scaleTargetRef"] == {"name": only("worker", "Deployment")["metadata"]["name"]}
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")  # required for a fallback
    assert trigger["metadata"].keys() == PROMETHEUS
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert trigger["metadata"]["threshold"] == settings()["PENSTOCK_WORKER_CONCURRENCY"]
    assert 'state=~"visible|in_flight"' in trigger["metadata"]["query"]


def test_scaling_uses_a_metric_of_the_catalogue() -> None:
    query = only("keda", "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    (name,) = re.findall(r"penstock_(\w+)", query)
    assert set(METRICS[name].labels) >= {"queue", "state"}
    assert {"visible", "in_flight"} <= set(METRICS[name].values["state"])


def test_scaling_in_is_slow_and_a_missing_measurement_is_not_zero() -> None:
    spec = only("keda", "ScaledObject")["spec"]
    assert spec["minReplicaCount"] >= 1
    assert spec["fallback"] == {"failureThreshold": 4, "replicas": only("worker", "Deployment")["spec"]["replicas"]}
    assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 300
    (policy,) = down["policies"]
    assert policy["periodSeconds"] >= pod("worker")["terminationGracePeriodSeconds"]
    assert policy["value"] == 1
