"""The examples of the Spark pages: Python compiles and uses names that exist, settings are settings."""

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.test_docs import ALL_COMMANDS, ROOT_GROUP

from penstock.app.pipelines.running import RunReport
from penstock.config import Settings
from penstock.config.names import dotted

FOLDER = Path(__file__).parents[2] / "docs/run"
PAGES = sorted([*FOLDER.glob("spark*.md"), FOLDER / "databricks.md", FOLDER / "orchestrators.md"])
VALUES = {"POD_IP": "10.0.0.7", "POD_NAME": "worker-0"}


def blocks(language: str) -> list[Any]:
    return [*_blocks(language)]


def _blocks(language: str) -> Iterator[Any]:
    for page in PAGES:
        found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        for number, text in enumerate(found):
            yield pytest.param(text, id=f"{page.stem}-{number}")


@pytest.mark.parametrize("text", blocks("python"))
def test_python_compiles_and_its_names_of_penstock_exist(text: str) -> None:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "report":
            assert node.attr in {field.name for field in fields(RunReport)}


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_names_settings(text: str) -> None:
    known = {dotted(name) for name in Settings.model_fields}
    for table, settings in tomllib.loads(text).items():
        for name in settings:
            assert f"{table}.{name}" in known


@pytest.mark.parametrize("text", [*blocks("sh"), *blocks("bash")])
def test_every_option_of_a_command_line_exists(text: str) -> None:
    lines = re.sub(r"\\\n", " ", text).replace('"$(penstock --script)"', "; penstock").splitlines()
    for line in lines:
        for part in line.split("; "):
            words = shlex.split(part, comments=True)
            if words[:1] == ["penstock"]:
                check_options(words[1:])


def check_options(words: list[str]) -> None:
    names = [" ".join(words[:count]) for count in (3, 2, 1)]
    command = next((ALL_COMMANDS[name] for name in names if name in ALL_COMMANDS), ROOT_GROUP)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("text", blocks("yaml"))
def test_the_variable_for_kubernetes_is_json_once_its_values_are_in(text: str) -> None:
    variables = {one["name"]: one for one in yaml.safe_load(text)["env"]}
    value = re.sub(r"\$\((\w+)\)", lambda found: VALUES[found[1]], variables["PENSTOCK_SPARK_CONF"]["value"])
    conf = json.loads(value)
    assert conf["spark.driver.host"] == "10.0.0.7"
    assert conf["spark.kubernetes.driver.pod.name"] == "worker-0"
    assert all(name.startswith("spark.") and isinstance(setting, str) for name, setting in conf.items())
    assert VALUES.keys() <= variables.keys()
