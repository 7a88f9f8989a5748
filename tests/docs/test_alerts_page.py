"""The commands in docs/fix/alerts.md work as the page says."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fix/alerts.md").read_text(encoding="utf-8")
SHELL_SECONDS = 60.0
NOTE = 'printf "%s\\0" {name} "$@" >> "{calls}"; printf "\\n\\n" >> "{calls}"'
SCRIPTS = {
    # Replacements for the programs that the page calls. Each records its arguments and prints a fixed answer.
    "aws": """[ "$2" = describe-services ] && echo '{"awsvpcConfiguration": {"subnets": ["subnet-1"]}}'
[ "$2" = run-task ] && echo arn:aws:ecs:eu-west-1:123456789012:task/shop/0123
exit 0""",
    "sudo": 'exec "$@"',
    "systemd-run": "exit 0",
    "journalctl": "exit 0",
    "penstock": "exit 0",
}


def section(heading: str) -> str:
    """Return the shell commands of a section."""
    text = PAGE.partition(f"\n### {heading}\n")[2].partition("\n##")[0]
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


def called(folder: Path, heading: str) -> list[list[str]]:
    """Run the shell commands of a section and return the calls of the scripts, each with the script's name first."""
    for name, script in SCRIPTS.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{NOTE.format(name=name, calls=folder / 'calls')}\n{script}\n")
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(
        ["bash", "-eu", "-c", section(heading)], env=environment, cwd=folder, timeout=SHELL_SECONDS, check=True
    )
    calls = (folder / "calls").read_text().removesuffix("\0\n\n").split("\0\n\n")
    return [call.split("\0") for call in calls]


def option(call: list[str], name: str) -> str:
    return call[call.index(name) + 1]


def test_the_ecs_commands_run_in_a_task_with_the_operators_role(tmp_path: Path) -> None:
    calls = called(tmp_path, "On ECS")
    runs = [call for call in calls if call[:3] == ["aws", "ecs", "run-task"]]
    words = []
    shape = botocore.session.get_session().get_service_model("ecs").operation_model("RunTask").input_shape
    for call in runs:
        wanted: dict[str, Any] = {
            "cluster": option(call, "--cluster"),
            "launchType": option(call, "--launch-type"),
            "taskDefinition": option(call, "--task-definition"),
            "networkConfiguration": json.loads(option(call, "--network-configuration")),
            "overrides": json.loads(option(call, "--overrides")),
        }
        assert str(ParamValidator().validate(wanted, shape).generate_report()) == ""
        assert wanted["overrides"]["taskRoleArn"].endswith(":role/orders-operator")
        (container,) = wanted["overrides"]["containerOverrides"]
        words.append(container["command"])
    assert [one[0] for one in words] == ["status", "dead", "dead"]
    assert words[0] == ["status", "--app", "shop:app"]
    task = json.loads((ROOT / "deploy/ecs/worker.task.json").read_text())
    (container,) = task["containerDefinitions"]
    assert {option(call, "--task-definition") for call in runs} == {task["family"]}
    prefix = container["logConfiguration"]["options"]["awslogs-stream-prefix"]
    streams = [option(call, "--log-stream-names") for call in calls if "--log-stream-names" in call]
    assert streams == [f"{prefix}/{container['name']}/0123"] * len(runs)


def test_the_systemd_commands_have_the_configuration_of_the_unit(tmp_path: Path) -> None:
    calls = [call for call in called(tmp_path, "With systemd") if call[0] == "systemd-run"]
    unit = (
        (ROOT / "deploy/systemd/penstock-worker@.service").read_text().replace("%i", "shop").replace("%S", "/var/lib")
    )
    for call in calls:
        for given in [word.removeprefix("--property=") for word in call if word.startswith("--property=")]:
            assert given in unit.splitlines()
        assert f"Environment={option_with(call, '--setenv=')}" in unit.splitlines()
        assert f"WorkingDirectory={option_with(call, '--working-directory=')}" in unit.splitlines()
        assert f"User={option_with(call, '--uid=')}" in unit.splitlines()
    script, *words = calls[0][calls[0].index("-c") + 1 :]
    assert words == ["penstock", "status", "--app", "shop:app"]
    assert "/opt/penstock/bin/penstock" in unit
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$PENSTOCK_SECRETS_DIR" "$@"\n')
    program.chmod(0o755)
    printed = subprocess.run(
        ["sh", "-c", script.replace("/opt/penstock/bin/penstock", str(program)), *words],
        env={"CREDENTIALS_DIRECTORY": "/run/c", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=SHELL_SECONDS,
        check=True,
    ).stdout
    assert printed == "/run/c status --app shop:app\n"


def option_with(call: list[str], start: str) -> str:
    (found,) = [word.removeprefix(start) for word in call if word.startswith(start)]
    return found


@pytest.mark.parametrize("heading", ["On Kubernetes", "On ECS", "With systemd", "With Compose"])
def test_each_platform_has_commands_for_status_dead_letters_and_logs(heading: str) -> None:
    for verb in ("status", "dead groups", "logs diagnose"):
        assert verb in section(heading)


def test_kubernetes_and_compose_commands_name_existing_resources() -> None:
    kubernetes = section("On Kubernetes")
    names = set(re.findall(r"(?:pod[/ ]|deployment/|exec -it |exec -i )(penstock-\w+)", kubernetes))
    manifests = "".join(path.read_text() for path in (ROOT / "deploy/kubernetes").glob("*.yaml"))
    assert names == {"penstock-operator", "penstock-worker"}
    for name in names:
        assert f"\n  name: {name}\n" in manifests
    compose = (ROOT / "deploy/docker/compose.yaml").read_text()
    for name in re.findall(r"docker compose (?:exec|logs) (?:-\S+ |2h )*(\w+)", section("With Compose")):
        assert f"\n  {name}:\n" in compose
