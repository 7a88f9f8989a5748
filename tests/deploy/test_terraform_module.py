"""The Terraform module: the files of `penstock init --aws`, and more. With the AWS provider, terraform validates it.

terraform would download the provider, which is large. So `TERRAFORM_PLUGIN_DIR` names a folder that has it, as for
`terraform init -plugin-dir`.
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
    """Return the policies of a file by name, each with its statements by id. Default: those only in the module."""
    found: dict[str, dict[str, Any]] = {}
    for block in read_hcl(FOLDER / file)["data"]:
        for name, body in block["aws_iam_policy_document"].items():
            dynamic = [one["statement"]["content"] for one in body.get("dynamic", [])]
            flat = [each for one in dynamic for each in (one if isinstance(one, list) else [one])]
            found[name] = {one["sid"]: one for one in (*body.get("statement", []), *flat)}
    return found


def blocks(text: str, kind: str) -> dict[str, str]:
    """Return the text of each block of a kind, by its label."""
    return {m[1]: m[0] for m in re.finditer(rf'^{kind} "(\w+)" \{{.*?^\}}$', text, re.DOTALL | re.MULTILINE)}


@pytest.mark.parametrize("name", SAME)
def test_queues_and_policies_are_those_of_init(name: str) -> None:
    """Two copies, because a module is fetched without the package, and the package is installed without deploy/."""
    same = (FOLDER / name).read_text() == (STARTER / name).read_text()
    assert same, f"cp {(STARTER / name).relative_to(ROOT)} {FOLDER.relative_to(ROOT)}/, or the other way round"


@pytest.mark.parametrize(("kind", "file"), [("variable", "variables.tf"), ("output", "outputs.tf")])
def test_variables_and_outputs_of_init_are_the_same_here(kind: str, file: str) -> None:
    here, there = (blocks((folder / file).read_text(), kind) for folder in (FOLDER, STARTER))
    provider = {"region", "tags"}  # a module gets these from its caller
    assert there.keys() - here.keys() == (provider if kind == "variable" else set())
    different = {name for name in there.keys() & here.keys() if here[name] != there[name]}
    assert different == (set() if kind == "variable" else {"policy_documents"})  # here with the operator's policies


def test_all_references_resolve_and_are_in_the_readme() -> None:
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


def test_the_layout_is_that_of_terraform_fmt() -> None:
    """Check without terraform: no trailing blanks, no tabs, and two spaces per level."""
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
    """Return the change of depth for the next line: several brackets on one line count once."""
    opened = sum(code.count(sign) for sign in "([{") - sum(code.count(sign) for sign in ")]}")
    return max(-1, min(1, opened))


def test_the_operator_measures_and_replays_and_never_touches_the_queue_itself() -> None:
    (body,) = [
        one["aws_iam_policy_document"]["operator"]
        for one in read_hcl(FOLDER / "roles.tf")["data"]
        if "operator" in one["aws_iam_policy_document"]
    ]
    sources = [f"${{data.aws_iam_policy_document.{name}.json}}" for name in ("monitor", "replay")]
    assert body["source_policy_documents"] == sources
    own = {name: (one["actions"], one["resources"]) for name, one in documents()["operator"].items()}
    assert own == {
        "ReadTable": (["s3:GetObject"], '${[for prefix in local.table_prefixes : "${statement.value}/${prefix}*"]}'),
        "ListTableToRead": (["s3:ListBucket"], ["${statement.value}"]),
        "KeysToRead": (["kms:Decrypt"], "${statement.value}"),
        "ListNames": (["sqs:ListQueues"], ["*"]),
        "ImportDeadLetters": (["sqs:SendMessage"], [DLQ]),
    }
    # Together they neither receive from the queue nor purge any.
    shared = documents("policies.tf")
    together = [one for name in ("monitor", "automatic_replay", "replay") for one in shared[name].values()]
    on_queue = {action for one in together if SOURCE in one["resources"] for action in one["actions"]}
    assert on_queue == {"sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"}


def test_worker_and_operator_may_read_the_table() -> None:
    """Without that permission every measurement of the table fails."""
    worker, operator = documents("policies.tf")["worker"], documents()["operator"]
    assert "s3:GetObject" in worker["WriteTable"]["actions"]
    assert operator["ReadTable"]["resources"] == worker["WriteTable"]["resources"]
    for same in ("resources", "condition"):
        assert operator["ListTableToRead"][same] == worker["ListTable"][same]
    assert operator["KeysToRead"]["resources"] == worker["Keys"]["resources"]


def test_actions_without_resources_have_a_condition_or_only_read() -> None:
    wide = {
        (name, sid): one
        for name, found in documents().items()
        for sid, one in found.items()
        if one.get("resources") == ["*"]
    }
    assert wide.keys() == {("operator", "ListNames"), ("metrics", "Metrics")}
    (condition,) = wide["metrics", "Metrics"]["condition"]
    assert (condition["variable"], condition["values"]) == ("cloudwatch:namespace", ["${var.cloudwatch_namespace}"])


def test_a_task_may_protect_itself_in_its_cluster() -> None:
    (one,) = documents()["protection"].values()
    assert one["actions"] == ["ecs:UpdateTaskProtection"]
    assert one["resources"] == ["${local.ecs_tasks}:task/${var.ecs_cluster}/*"]


def test_only_tasks_of_this_account_or_the_named_pods_may_assume_the_roles() -> None:
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
    assert found == {name: name for name in ("worker", "sender", "operator")}
    assert set(re.findall(r'"(\w+)"', kinds[1])) == found.keys()


# --- with terraform


def ask(folder: Path, *arguments: str) -> str:
    """Run terraform, assert success, and return the output."""
    done = terraform(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a copy in which terraform may write."""
    folder = tmp_path_factory.mktemp("module") / "terraform"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns(".terraform*"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def provided(module: Path) -> Path:
    """Return the same copy, with AWS's provider."""
    plugins = os.environ.get(PLUGINS)
    if not plugins:
        pytest.skip(f"not applicable: no folder of providers for terraform is named by {PLUGINS}")
    ask(module, "init", "-backend=false", "-input=false", f"-plugin-dir={plugins}")
    return module


def test_terraform_fmt_finds_nothing_in_the_module(module: Path) -> None:
    assert ask(module, "fmt", "-check", "-diff", "-recursive") == ""


def test_terraform_validates_the_module(provided: Path) -> None:
    assert "The configuration is valid" in ask(provided, "validate", "-no-color")


def test_the_modules_own_tests_pass(provided: Path) -> None:
    runs = (FOLDER / "tests/module.tftest.hcl").read_text().count('\nrun "')
    assert f"{runs} passed, 0 failed" in ask(provided, "test", "-no-color")


def test_the_files_of_init_are_valid(provided: Path, tmp_path: Path) -> None:
    for path in STARTER.glob("*.tf"):
        shutil.copy(path, tmp_path)
    shutil.copy(provided / ".terraform.lock.hcl", tmp_path)
    (tmp_path / ".terraform").symlink_to(provided / ".terraform")
    assert "The configuration is valid" in ask(tmp_path, "validate", "-no-color")
