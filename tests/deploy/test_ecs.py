"""Task definitions and services of ECS: the shapes of its own API, time to stop, health, rights, one monitor."""

import copy
import json
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator
from tests.deploy.budgets import check
from tests.deploy.tools import DEPLOY

from penstock.config import load_settings, unknown_variables

FOLDER = DEPLOY / "ecs"
KINDS = ("monitor", "replayer", "worker")
OPERATIONS = {"task": "RegisterTaskDefinition", "service": "CreateService"}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def container(kind: str) -> dict[str, Any]:
    (only,) = read(f"{kind}.task.json")["containerDefinitions"]
    found: dict[str, Any] = only
    return found


def environment(kind: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(kind)["environment"]}


def complaints(document: dict[str, Any], operation: str) -> str:
    """By the model of ECS's API that the AWS library brings along."""
    shape = botocore.session.get_session().get_service_model("ecs").operation_model(operation).input_shape
    return str(ParamValidator().validate(document, shape).generate_report())


def test_all_of_them_are_looked_at() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{kind}.{part}.json" for kind in KINDS for part in OPERATIONS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", OPERATIONS)
def test_ecs_knows_every_field_and_its_type(kind: str, part: str) -> None:
    assert complaints(read(f"{kind}.{part}.json"), OPERATIONS[part]) == ""


def test_the_model_would_find_something() -> None:
    wrong = copy.deepcopy(read("worker.task.json"))
    wrong["containerDefinitions"][0]["stopTimeout"] = "120"
    wrong["containerDefinitions"][0]["stopTimeOut"] = 120
    assert "Invalid type for parameter containerDefinitions[0].stopTimeout" in complaints(wrong, OPERATIONS["task"])
    assert 'Unknown parameter in containerDefinitions[0]: "stopTimeOut"' in complaints(wrong, OPERATIONS["task"])
    del wrong["family"]
    assert 'Missing required parameter in input: "family"' in complaints(wrong, OPERATIONS["task"])


@pytest.mark.parametrize("kind", KINDS)
def test_ecs_waits_for_as_long_as_penstock_takes(kind: str) -> None:
    check(
        (FOLDER / f"{kind}.task.json").read_text(),
        "fargate",
        granted_seconds=container(kind)["stopTimeout"],
        setting=environment(kind)["PENSTOCK_STOP_TIMEOUT_SECONDS"],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_penstock_is_what_gets_the_signal(kind: str) -> None:
    found = container(kind)
    assert found["command"] == [kind, "shop:app"]
    assert "entryPoint" not in found  # that of the image: tini, and no shell
    assert found["linuxParameters"]["initProcessEnabled"] is False  # tini is one
    assert found["essential"] is True


@pytest.mark.parametrize("kind", KINDS)
def test_its_loop_is_asked_how_it_is(kind: str) -> None:
    found = container(kind)
    (port,) = [one["containerPort"] for one in found["portMappings"]]
    command = found["healthCheck"]["command"]
    assert command[:3] == ["CMD", "python", "/opt/penstock/healthcheck.py"]
    assert command[3:] == (["9564"] if kind == "monitor" else [])
    assert port == (9564 if kind == "monitor" else 9464)


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_is_in_the_clear_and_nobody_is_root(kind: str) -> None:
    found = container(kind)
    assert (found["user"], found["readonlyRootFilesystem"]) == ("10001:10001", True)
    assert {one["containerPath"] for one in found["mountPoints"]} == {"/var/lib/penstock", "/tmp"}
    assert {one["sourceVolume"] for one in found["mountPoints"]} == {
        one["name"] for one in read(f"{kind}.task.json")["volumes"]
    }
    assert [one["name"] for one in found["secrets"]] == ["PENSTOCK_LEDGER"]
    for secret in found["secrets"]:
        assert secret["valueFrom"].startswith(("arn:aws:secretsmanager:", "arn:aws:ssm:"))
    assert not [value for value in environment(kind).values() if "@" in value]


@pytest.mark.parametrize("kind", KINDS)
def test_every_variable_is_a_setting_that_fits(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment(kind).items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert unknown_variables() == []
    assert settings.broker.startswith("sqs://")
    assert settings.ecs_task_protection is (kind == "worker")


@pytest.mark.parametrize("kind", KINDS)
def test_each_has_a_role_of_its_own_and_a_log_that_holds_nobody_up(kind: str) -> None:
    assert read(f"{kind}.task.json")["taskRoleArn"].endswith(f":role/orders-{kind}")
    log = container(kind)["logConfiguration"]
    assert (log["logDriver"], log["options"]["mode"]) == ("awslogs", "non-blocking")


def test_a_deploy_starts_new_workers_before_it_stops_old_ones_and_never_two_monitors() -> None:
    limits = {}
    for kind in KINDS:
        service = read(f"{kind}.service.json")
        assert service["taskDefinition"] == read(f"{kind}.task.json")["family"]
        deploying = service["deploymentConfiguration"]
        assert deploying["deploymentCircuitBreaker"] == {"enable": True, "rollback": True}
        limits[kind] = (deploying["minimumHealthyPercent"], deploying["maximumPercent"])
        assert "loadBalancers" not in service
    # With task protection the new ones must be able to come while the old ones may not go.
    assert limits == {"worker": (100, 200), "replayer": (100, 200), "monitor": (0, 100)}
    assert read("monitor.service.json")["desiredCount"] == 1
