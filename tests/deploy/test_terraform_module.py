"""The Terraform module: what `penstock init --aws` writes, and more. Where AWS's provider is, terraform is asked.

It would download the provider, which is large and takes the network. So `TERRAFORM_PLUGIN_DIR` names a folder that has
it, as for `terraform init -plugin-dir`.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.reading import read_hcl
from tests.deploy.tools import DEPLOY, ROOT, STARTER, terraform

FOLDER = DEPLOY / "terraform"
FILES = sorted(FOLDER.glob("*.tf"))
SAME = ("bucket.tf", "policies.tf", "queues.tf")
PLUGINS = "TERRAFORM_PLUGIN_DIR"
SOURCE, DLQ, DEAD = (f"${{aws_sqs_queue.{name}.arn}}" for name in ("source", "dlq", "dead"))


def documents(file: str = "roles.tf") -> Mapping[str, dict[str, Any]]:
    """The policies of a file, by default of those that are the module's own, by name: their statements, by id."""
    found: dict[str, dict[str, Any]] = {}
    for block in read_hcl(FOLDER / file)["data"]:
        for name, body in block["aws_iam_policy_document"].items():
            dynamic = [one["statement"]["content"] for one in body.get("dynamic", [])]
            flat = [each for one in dynamic for each in (one if isinstance(one, list) else [one])]
            found[name] = {one["sid"]: one for one in (*body.get("statement", []), *flat)}
    return found


def blocks(text: str, kind: str) -> dict[str, str]:
    """The text of each block of a kind, by its label."""
    return {m[1]: m[0] for m in re.finditer(rf'^{kind} "(\w+)" \{{.*?^\}}$', text, re.DOTALL | re.MULTILINE)}


@pytest.mark.parametrize("name", SAME)
def test_queues_and_policies_are_those_of_init(name: str) -> None:
    """Twice, since a module is fetched and copied without the rest, and the package is installed without deploy/."""
    same = (FOLDER / name).read_text() == (STARTER / name).read_text()
    assert same, f"cp {(STARTER / name).relative_to(ROOT)} {FOLDER.relative_to(ROOT)}/, or the other way round"


@pytest.mark.parametrize(("kind", "file"), [("variable", "variables.tf"), ("output", "outputs.tf")])
def test_what_init_has_means_the_same_here(kind: str, file: str) -> None:
    here, there = (blocks((folder / file).read_text(), kind) for folder in (FOLDER, STARTER))
    provider = {"region", "tags"}  # which a module has from whoever calls it
    assert there.keys() - here.keys() == (provider if kind == "variable" else set())
    different = {name for name in there.keys() & here.keys() if here[name] != there[name]}
    assert different == (set() if kind == "variable" else {"policy_documents"})  # the monitor's is there, too


def test_everything_that_is_referred_to_is_there_and_said_in_the_readme() -> None:
    code = "\n".join(line.partition("#")[0] for path in FILES for line in path.read_text().splitlines())
    text = "\n".join(path.read_text() for path in FILES)
    named = {name: set(blocks(text, name)) for name in ("variable", "output")}
    assert set(re.findall(r"\bvar\.(\w+)", code)) == named["variable"]
    readme = (FOLDER / "README.md").read_text()
    for name in named["variable"] | named["output"]:
        assert f"`{name}`" in readme, name
    example = (FOLDER / "examples/ecs/main.tf").read_text()
    assert set(
        re.findall(r"^  (\w+) += ", example.partition('module "orders"')[2].partition("\n}")[0], re.MULTILINE)
    ) <= (named["variable"] | {"source"})
    assert set(re.findall(r"module\.orders\.(\w+)", example)) <= named["output"]


def test_no_provider_is_configured_in_a_module() -> None:
    assert [path.name for path in FILES if "provider" in read_hcl(path)] == []


def test_the_module_has_no_layout_of_its_own() -> None:
    """What `terraform fmt` would change that can be told without it: blanks, tabs, and two spaces a level."""
    for path in (*FILES, FOLDER / "examples/ecs/main.tf", *STARTER.glob("*.tf"), *FOLDER.glob("tests/*.hcl")):
        depth = 0
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.name}:{number}"
            assert line == line.rstrip(), where
            assert "\t" not in line, where
            code = re.sub(r'"(?:\\.|[^"\\])*"', '""', line.partition("#")[0]).strip()
            closing = len(re.match(r"^[\]})]*", code)[0])  # type: ignore[index]  # it matches nothing at least
            if code:
                assert len(line) - len(line.lstrip()) == 2 * (depth - min(closing, 1)), where
            depth += _levels(code)
        assert depth == 0, path.name


def _levels(code: str) -> int:
    """How many levels deeper the next line is: brackets that open on one line are one."""
    opened = sum(code.count(sign) for sign in "([{") - sum(code.count(sign) for sign in ")]}")
    return max(-1, min(1, opened))


def test_the_monitor_only_looks() -> None:
    monitor = documents()["monitor"]
    assert {name: (one["actions"], one["resources"]) for name, one in monitor.items()} == {
        "Look": (["sqs:GetQueueAttributes", "sqs:GetQueueUrl"], [SOURCE, DLQ, DEAD]),
        "Ages": (["cloudwatch:GetMetricData"], ["*"]),
        "SeeTable": (["s3:GetObject"], '${[for prefix in local.table_prefixes : "${statement.value}/${prefix}*"]}'),
        "ListTableToSee": (["s3:ListBucket"], ["${statement.value}"]),
        "KeysToSee": (["kms:Decrypt"], "${statement.value}"),
    }


def test_the_monitor_sees_of_the_table_what_the_worker_writes_there() -> None:
    """Without that right every look at the table fails, and the monitor counts as blind."""
    worker, monitor = documents("policies.tf")["worker"], documents()["monitor"]
    assert monitor["SeeTable"]["resources"] == worker["WriteTable"]["resources"]
    for same in ("resources", "condition"):
        assert monitor["ListTableToSee"][same] == worker["ListTable"][same]
    assert monitor["KeysToSee"]["resources"] == worker["Keys"]["resources"]


def test_the_operator_looks_as_the_monitor_and_replays_and_never_touches_the_queue_itself() -> None:
    (body,) = [
        one["aws_iam_policy_document"]["operator"]
        for one in read_hcl(FOLDER / "roles.tf")["data"]
        if "operator" in one["aws_iam_policy_document"]
    ]
    sources = [f"${{data.aws_iam_policy_document.{name}.json}}" for name in ("monitor", "replay")]
    assert body["source_policy_documents"] == sources
    own = {name: (one["actions"], one["resources"]) for name, one in documents()["operator"].items()}
    assert own == {"ListNames": (["sqs:ListQueues"], ["*"]), "PutLettersBack": (["sqs:SendMessage"], [DLQ])}
    # Taken together: nothing that takes from the queue, or empties any.
    together = [*documents()["monitor"].values(), *documents("policies.tf")["replay"].values()]
    on_queue = {action for one in together if SOURCE in one["resources"] for action in one["actions"]}
    assert on_queue == {"sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"}


def test_what_knows_no_resources_has_a_condition_or_only_reads() -> None:
    wide = {
        (name, sid): one
        for name, found in documents().items()
        for sid, one in found.items()
        if one.get("resources") == ["*"]
    }
    assert wide.keys() == {("monitor", "Ages"), ("operator", "ListNames"), ("metrics", "Metrics")}
    (condition,) = wide["metrics", "Metrics"]["condition"]
    assert (condition["variable"], condition["values"]) == ("cloudwatch:namespace", ["${var.cloudwatch_namespace}"])


def test_a_task_may_protect_itself_in_its_cluster() -> None:
    (one,) = documents()["protection"].values()
    assert one["actions"] == ["ecs:UpdateTaskProtection"]
    assert one["resources"] == ["${local.ecs_tasks}:task/${var.ecs_cluster}/*"]


def test_only_tasks_of_this_account_or_the_named_pods_take_the_roles_on() -> None:
    trust = documents()["own_trust"]
    assert trust["Tasks"]["principals"] == [{"type": "Service", "identifiers": ["ecs-tasks.amazonaws.com"]}]
    assert {one["variable"] for one in trust["Tasks"]["condition"]} == {"aws:SourceArn", "aws:SourceAccount"}
    assert [one["variable"] for one in trust["Pods"]["condition"]] == [
        "${statement.value.url}:sub",
        "${statement.value.url}:aud",
    ]
    assert {one["test"] for one in trust["Pods"]["condition"]} == {"StringEquals"}


def test_each_role_has_the_policy_of_its_kind() -> None:
    text = (FOLDER / "roles.tf").read_text()
    kinds = re.search(r"kinds = .*?toset\(\[(.*?)\]\)", text)
    assert kinds is not None
    found = dict(re.findall(r"^    (\w+) += data\.aws_iam_policy_document\.(\w+)\.json$", text, re.MULTILINE))
    same = ("worker", "sender", "monitor", "operator")
    assert found == {**{name: name for name in same}, "replayer": "replay"}
    assert set(re.findall(r'"(\w+)"', kinds[1])) == found.keys()


# --- with terraform


def ask(folder: Path, *arguments: str) -> str:
    """What terraform says. It is to succeed."""
    said = terraform(folder, *arguments)
    assert said.returncode == 0, said.stdout + said.stderr
    return said.stdout


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy in which terraform may write."""
    folder = tmp_path_factory.mktemp("module") / "terraform"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns(".terraform*"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def provided(module: Path) -> Path:
    """The same, with AWS's provider."""
    plugins = os.environ.get(PLUGINS)
    if not plugins:
        pytest.skip(f"not applicable: no folder of providers for terraform is named by {PLUGINS}")
    ask(module, "init", "-backend=false", "-input=false", f"-plugin-dir={plugins}")
    return module


def test_terraform_finds_the_files_well_laid_out(module: Path) -> None:
    assert ask(module, "fmt", "-check", "-diff", "-recursive") == ""


def test_terraform_and_the_provider_find_the_module_valid(provided: Path) -> None:
    assert "The configuration is valid" in ask(provided, "validate", "-no-color")


def test_the_modules_own_tests_pass(provided: Path) -> None:
    runs = (FOLDER / "tests/module.tftest.hcl").read_text().count('\nrun "')
    assert f"{runs} passed, 0 failed" in ask(provided, "test", "-no-color")


def test_what_init_writes_is_valid_too(provided: Path, tmp_path: Path) -> None:
    for path in STARTER.glob("*.tf"):
        shutil.copy(path, tmp_path)
    shutil.copy(provided / ".terraform.lock.hcl", tmp_path)
    (tmp_path / ".terraform").symlink_to(provided / ".terraform")
    assert "The configuration is valid" in ask(tmp_path, "validate", "-no-color")
