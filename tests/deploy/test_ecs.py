"""The task definition and the service for ECS: the shapes of its API, time to stop, health, rights."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator
from tests.deploy.budgets import check
from tests.deploy.tools import DEPLOY

from penstock.config import load_settings, unknown_variables

FOLDER = DEPLOY / "ecs"
OPERATIONS = {"task": "RegisterTaskDefinition", "service": "CreateService"}


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def container() -> dict[str, Any]:
    (only,) = read("worker.task.json")["containerDefinitions"]
    found: dict[str, Any] = only
    return found


def environment() -> dict[str, str]:
    return {one["name"]: one["value"] for one in container()["environment"]}


def complaints(document: dict[str, Any], operation: str) -> str:
    """Validate with the model of ECS's API in botocore."""
    shape = botocore.session.get_session().get_service_model("ecs").operation_model(operation).input_shape
    return str(ParamValidator().validate(document, shape).generate_report())


def test_there_is_one_task_and_one_service() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"worker.{part}.json" for part in OPERATIONS}


@pytest.mark.parametrize("part", OPERATIONS)
def test_ecs_knows_every_field_and_its_type(part: str) -> None:
    assert complaints(read(f"worker.{part}.json"), OPERATIONS[part]) == ""


def test_the_model_finds_mistakes() -> None:
    wrong = copy.deepcopy(read("worker.task.json"))
    wrong["containerDefinitions"][0]["stopTimeout"] = "120"
    wrong["containerDefinitions"][0]["stopTimeOut"] = 120
    assert "Invalid type for parameter containerDefinitions[0].stopTimeout" in complaints(wrong, OPERATIONS["task"])
    assert 'Unknown parameter in containerDefinitions[0]: "stopTimeOut"' in complaints(wrong, OPERATIONS["task"])
    del wrong["family"]
    assert 'Missing required parameter in input: "family"' in complaints(wrong, OPERATIONS["task"])


def test_ecs_waits_for_the_stop_timeout() -> None:
    check(
        (FOLDER / "worker.task.json").read_text(),
        "fargate",
        granted_seconds=container()["stopTimeout"],
        setting=environment()["PENSTOCK_WORKER_STOP_TIMEOUT"],
    )


def test_signals_reach_penstock() -> None:
    found = container()
    assert found["command"] == ["worker", "shop:app"]
    assert "entryPoint" not in found  # the image's entry point is tini, without a shell
    assert found["linuxParameters"]["initProcessEnabled"] is False  # tini is one
    assert found["essential"] is True


def test_the_health_check_is_that_of_the_image() -> None:
    found = container()
    (port,) = [one["containerPort"] for one in found["portMappings"]]
    image = (DEPLOY / "docker/Dockerfile").read_text()
    (check_of_image,) = re.findall(r"HEALTHCHECK --interval=15s .*?CMD (\[.*?\])$", image, re.DOTALL | re.MULTILINE)
    assert found["healthCheck"]["command"] == ["CMD", *json.loads(check_of_image)]
    assert f"PENSTOCK_METRICS_ADDRESS=0.0.0.0:{port}" in image


def test_no_secret_is_in_clear_and_no_process_runs_as_root() -> None:
    found = container()
    assert (found["user"], found["readonlyRootFilesystem"]) == ("10001:10001", True)
    assert {one["containerPath"] for one in found["mountPoints"]} == {"/var/lib/penstock", "/tmp"}
    assert {one["sourceVolume"] for one in found["mountPoints"]} == {
        one["name"] for one in read("worker.task.json")["volumes"]
    }
    assert [one["name"] for one in found["secrets"]] == ["PENSTOCK_LEDGER"]
    for secret in found["secrets"]:
        assert secret["valueFrom"].startswith(("arn:aws:secretsmanager:", "arn:aws:ssm:"))
    assert not [value for value in environment().values() if "@" in value]


def test_every_variable_is_a_valid_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert unknown_variables() == []
    assert settings.broker.startswith("sqs://")
    assert (settings.worker_ecs_task_protection, settings.dead_letters_replay) == (True, True)


def test_the_task_has_the_workers_role_and_a_non_blocking_log() -> None:
    assert read("worker.task.json")["taskRoleArn"].endswith(":role/orders-worker")
    log = container()["logConfiguration"]
    assert (log["logDriver"], log["options"]["mode"]) == ("awslogs", "non-blocking")


def test_a_deploy_starts_new_workers_before_it_stops_old_ones() -> None:
    service = read("worker.service.json")
    assert service["taskDefinition"] == read("worker.task.json")["family"]
    deploying = service["deploymentConfiguration"]
    assert deploying["deploymentCircuitBreaker"] == {"enable": True, "rollback": True}
    # With task protection, new tasks must start while old ones may not be stopped.
    assert (deploying["minimumHealthyPercent"], deploying["maximumPercent"]) == (100, 200)
    assert "loadBalancers" not in service
