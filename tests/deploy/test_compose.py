"""The compose file: its schema, stopping in time, health checks, and no secret in clear."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.budgets import check
from tests.deploy.tools import DEPLOY, run

from penstock.config import load_settings, unknown_variables

DOCKER = DEPLOY / "docker"
FILE = DOCKER / "compose.yaml"
SECRET = re.compile(r"password|passwd|secret|token", re.IGNORECASE)
PASSWORD = re.compile(r"://[^/\s]*:[^/\s]*@")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def test_the_file_follows_the_compose_specification() -> None:
    done = run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("stop_grace_period: 60s", "stop_grace_time: 60s"), ("condition: service_healthy", "condition: healthy")],
)
def test_the_schema_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = FILE.read_text()
    assert right in text
    spoilt = tmp_path / "compose.yaml"
    spoilt.write_text(text.replace(right, wrong))
    assert run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", spoilt).returncode == 1


def test_docker_waits_for_the_stop_timeout(compose: dict[str, Any]) -> None:
    service = compose["services"]["worker"]
    check(
        FILE.read_text(),
        "docker",
        granted_seconds=float(service["stop_grace_period"].removesuffix("s")),
        setting=service["environment"]["PENSTOCK_WORKER_STOP_TIMEOUT"],
    )


def test_every_service_has_a_health_check_and_is_stopped_in_time(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        if name == "worker":
            assert "healthcheck" not in service  # the image has one
        else:
            assert {"test", "interval", "timeout", "retries", "start_period"} <= service["healthcheck"].keys(), name
        assert service["stop_grace_period"], name
        assert service["logging"]["options"]["max-size"], name
        assert service["restart"] == "unless-stopped", name  # on-failure restarts nothing after the host has restarted


def test_only_the_worker_and_the_local_aws_are_built(compose: dict[str, Any]) -> None:
    built = {name: service["build"] for name, service in compose["services"].items() if "build" in service}
    dockerfile = {"context": "../..", "dockerfile": "deploy/docker/Dockerfile"}
    assert built == {"worker": dockerfile, "aws": {**dockerfile, "target": "aws"}}


def test_dependencies_secrets_and_volumes_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for other, condition in service.get("depends_on", {}).items():
            assert other in compose["services"]
            assert condition == {"condition": "service_healthy"}
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source == "../grafana":
                continue  # compose creates an empty one if it is missing
            assert (DOCKER / source).exists() if source.startswith(".") else source in compose["volumes"]


def test_the_worker_has_no_privileges_and_writes_nowhere_else(compose: dict[str, Any]) -> None:
    service = compose["services"]["worker"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["command"] == ["worker", "shop:app"]


def test_nothing_listens_to_the_network(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        assert [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")] == []


def test_no_secret_is_in_the_clear(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for variable, value in service.get("environment", {}).items():
            assert not SECRET.search(variable) or variable.endswith(("_FILE", "_DIR")), variable
            assert not PASSWORD.search(value), variable
    for name, secret in compose["secrets"].items():
        assert secret == {"file": f"secrets/{name}"}
        assert (DOCKER / "secrets.example" / name).is_file()
    assert {path.name for path in (DOCKER / "secrets.example").iterdir()} == compose["secrets"].keys()
    assert {"/secrets/", "/penstock.env"} <= set((DOCKER / ".gitignore").read_text().splitlines())


def test_penstock_reads_its_secrets_by_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(DOCKER / "secrets.example"))
    settings = load_settings()
    redis = (DOCKER / "secrets.example/redis_password").read_text().strip()
    mariadb = (DOCKER / "secrets.example/mariadb_password").read_text().strip()
    assert settings.broker == f"redis://:{redis}@redis:6379/0"
    assert settings.ledger == f"mysql://penstock:{mariadb}@mariadb/penstock"


def test_every_variable_is_a_setting(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    named = set(re.findall(r"\bPENSTOCK_\w+(?==|:)", FILE.read_text() + (DOCKER / "penstock.env.example").read_text()))
    assert {"PENSTOCK_AWS_ENDPOINT_URL", "PENSTOCK_WORKER_STOP_TIMEOUT"} <= named
    for name in named:
        monkeypatch.setenv(name, "1")
    assert unknown_variables() == []


def test_the_example_settings_are_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (DOCKER / "penstock.env.example").read_text().splitlines():
        name, equals, value = line.removeprefix("# ").partition("=")
        if equals and name.startswith("PENSTOCK_"):
            monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.log_environment == "local"
    assert settings.dead_letters_replay is True
    assert settings.aws_endpoint_url == "http://aws:5000"


def test_prometheus_scrapes_the_workers(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["job_name"].startswith("penstock")  # the rules rely on it
    (found,) = job["dns_sd_configs"]
    assert (found["names"], [str(found["port"])]) == (["worker"], compose["services"]["worker"]["expose"])
    assert f"PENSTOCK_METRICS_ADDRESS=0.0.0.0:{found['port']}" in (DOCKER / "Dockerfile").read_text()
    assert scraped["rule_files"] == ["rules/*.rules.yaml"]
    assert list((DEPLOY / "prometheus").glob("*.rules.yaml"))
