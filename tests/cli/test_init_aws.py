"""`penstock init --aws`: names that AWS accepts, and files that are overwritten only on request."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock.cli.init import TEMPLATES, VALUES

USAGE = 2
FILES = {*TEMPLATES, VALUES}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / VALUES).read_text())
    return found


def test_the_files_are_written_with_the_names_and_the_settings(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_ATTEMPTS", "6")
    result = penstock(
        "init", "--aws", "--queue", "orders", "--bucket", "shop-landing", "--prefix", "a", "--prefix", "b/"
    )
    assert result.exit_code == 0, result.err
    assert {path.name for path in here.iterdir()} == {"aws"}
    assert {path.name for path in (here / "aws").iterdir()} == FILES
    assert set(result.out.splitlines()) == {f"aws/{name}" for name in FILES}
    assert "cd aws && terraform init" in result.err
    found = values(here / "aws")
    assert (found["queue"], found["bucket"], found["prefixes"]) == ("orders", "shop-landing", ["a/", "b/"])
    assert (found["max_attempts"], found["lease_seconds"], found["stop_timeout_seconds"]) == (6, 60.0, 30.0)


def test_files_are_written_to_another_folder_without_names(penstock: Call, here: Path) -> None:
    assert set(penstock("init", "infra/q", "--aws", "--json").document["written"]) == {f"infra/q/{n}" for n in FILES}
    assert not {"queue", "bucket", "prefixes", "table"} & set(values(here / "infra/q"))


def test_a_dry_run_prints_and_writes_nothing(penstock: Call, here: Path) -> None:
    result = penstock("init", "--aws", "--queue", "orders", "--dry-run")
    assert result.exit_code == 0
    assert "# aws/queues.tf\n" in result.out
    assert '"queue": "orders"' in result.out
    document = penstock("init", "--aws", "--dry-run", "--json").document
    assert (document["written"], set(document["would_write"])) == ([], {f"aws/{name}" for name in FILES})
    assert set(penstock("init", "--dry-run", "--json").document["would_write"]) >= {"penstock.toml", "app.py"}
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["queues.tf", VALUES])
def test_nothing_is_overwritten_without_force(penstock: Call, here: Path, name: str) -> None:
    (here / "aws").mkdir()
    (here / "aws" / name).write_text("mine")
    (here / "aws" / "other.tf").write_text("mine, too")
    result = penstock("init", "--aws")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert f"aws/{name} exists already and is not overwritten without --force" in result.err
    assert {path.name for path in (here / "aws").iterdir()} == {name, "other.tf"}
    assert penstock("init", "--aws", "--force").exit_code == 0
    assert (here / "aws" / name).read_text() != "mine"
    assert (here / "aws" / "other.tf").read_text() == "mine, too"


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_dry_run_lists_files_that_would_be_overwritten(penstock: Call, here: Path, options: tuple[str, ...]) -> None:
    assert penstock("init", "--aws", "--queue", "orders").exit_code == 0
    (here / "aws" / "queues.tf").write_text("mine")
    result = penstock("init", "--aws", "--queue", "mails", "--dry-run", *options)
    assert result.exit_code == 0, result.err
    assert '"queue": "mails"' in result.out
    assert f"--force would overwrite them: aws/queues.tf, aws/{VALUES}." in result.err
    document = penstock("init", "--aws", "--queue", "mails", "--dry-run", "--json", *options).document
    assert document["would_overwrite"] == list(document["would_write"]) == ["aws/queues.tf", f"aws/{VALUES}"]
    assert ((here / "aws" / "queues.tf").read_text(), values(here / "aws")["queue"]) == ("mine", "orders")


def test_force_writes_only_changed_files(penstock: Call, here: Path) -> None:
    assert penstock("init", "--aws", "--queue", "orders").exit_code == 0
    again = penstock("init", "--aws", "--queue", "orders")
    assert (again.exit_code, again.out) == (0, "")
    assert "Every file exists already with the same content." in again.err
    assert f"aws/{VALUES} exists already" in penstock("init", "--aws", "--queue", "mails").err
    assert penstock("init", "--aws", "--queue", "mails", "--force").out.splitlines() == [f"aws/{VALUES}"]
    assert values(here / "aws")["queue"] == "mails"


def test_the_last_line_warns_about_other_notifications_of_the_bucket(penstock: Call) -> None:
    words = "Terraform will replace the whole notification configuration of the bucket shop-landing."
    result = penstock("init", "--aws", "--bucket", "shop-landing")
    assert words in result.err.splitlines()[-1]
    assert "manage_notification to false" in result.err.splitlines()[-1]
    assert "Beware" not in penstock("init", "--aws", "without-a-bucket").err


def test_force_replaces_a_link_and_keeps_its_target(penstock: Call, here: Path) -> None:
    (here / "elsewhere").write_text("mine")
    (here / "aws").mkdir()
    (here / "aws" / "queues.tf").symlink_to(here / "elsewhere")
    assert penstock("init", "--aws", "--force").exit_code == 0
    assert (here / "elsewhere").read_text() == "mine"
    assert "aws_sqs_queue" in (here / "aws" / "queues.tf").read_text()


def test_force_does_not_overwrite_a_folder(penstock: Call, here: Path) -> None:
    (here / "aws" / "queues.tf").mkdir(parents=True)
    for options in ("--force", "--dry-run"):
        result = penstock("init", "--aws", options)
        assert result.exit_code == USAGE
        assert "aws/queues.tf exists already and is not overwritten: it is not a file" in result.err


def test_force_overwrites_the_app(penstock: Call, here: Path) -> None:
    (here / "app.py").write_text("mine")
    assert penstock("init", "--force").exit_code == 0
    assert (here / "app.py").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queue", "orders.fifo"], "a FIFO queue, to which S3 sends nothing"),
        (["--queue", "ord ers"], "up to 75 letters"),
        (["--queue", "q" * 76], "up to 75 letters"),
        (["--queue", ""], "up to 75 letters"),
        (["--bucket", "Shop"], "3 to 63 lowercase letters"),
        (["--bucket", "ab"], "3 to 63 lowercase letters"),
        (["--bucket", "a..b"], "3 to 63 lowercase letters"),
        (["--bucket", "10.0.0.1"], "3 to 63 lowercase letters"),
        (["--bucket", "-abc"], "3 to 63 lowercase letters"),
        (["--bucket", 'abc"\n'], "3 to 63 lowercase letters"),
        (["--bucket", "s3://shop/landing"], "--bucket shop, and --prefix for the rest"),
        (["--prefix", "a"], "The prefix a has no bucket"),
        (["--bucket", "shop", "--prefix", "a*"], "* is a wildcard for IAM"),
        (["--bucket", "shop", "--prefix", "a//b"], "is invalid"),
        (["--bucket", "shop", "--prefix", "${var.x}"], "is invalid"),
        (["--bucket", "shop", "--prefix", "a b"], "is invalid"),
        (["--bucket", "shop", "--prefix", "a/b", "--prefix", "a"], "a/ and a/b/ overlap"),
        (["--bucket", "shop", "--prefix", "a", "--prefix", "a/"], "a/ and a/ overlap"),
        (["--bucket", "shop", "--prefix", "", "--prefix", "a"], "(all) and a/ overlap"),
        (["--bucket", "shop", "--prefix", "/a"], "The prefix '/a' begins with a slash"),
        (["--bucket", "shop", "--prefix", "/"], "The prefix '/' begins with a slash"),
        (["--bucket", "shop", "--prefix", "a//"], "is invalid"),
        (["--table", "lake/clicks"], "write s3://BUCKET/PREFIX"),
        (["--table", "s3://lake"], "a whole bucket"),
        (["--table", "s3://lake/a b"], "is invalid"),
        (["--bucket", "shop", "--table", "s3://shop/clicks"], "would trigger notifications"),
        (["--bucket", "shop", "--prefix", "t", "--table", "s3://shop/t/clicks"], "would trigger notifications"),
        (
            ["--bucket", "shop", "--prefix", "t/clicks/in", "--table", "s3://shop/t/clicks"],
            "would trigger notifications",
        ),
        (["--bucket", "shop", "--prefix", "t_quarantine", "--table", "s3://shop/t"], "would trigger notifications"),
    ],
)
def test_an_invalid_name_is_a_usage_error(penstock: Call, here: Path, arguments: list[str], words: str) -> None:
    result = penstock("init", "--aws", *arguments)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert words in result.err
    assert list(here.iterdir()) == []


def test_a_table_beside_the_prefix_in_one_bucket_is_accepted(penstock: Call, here: Path) -> None:
    assert penstock("init", "--aws", "--bucket", "shop", "--prefix", "t", "--table", "s3://shop/tables").exit_code == 0
    assert values(here / "aws")["table"] == {"bucket": "shop", "prefix": "tables"}


@pytest.mark.parametrize("option", ["--queue", "--bucket", "--prefix", "--table"])
def test_names_without_aws_are_a_usage_error(penstock: Call, here: Path, option: str) -> None:
    result = penstock("init", option, "")
    assert result.exit_code == USAGE
    assert "need --aws" in result.err
    assert list(here.iterdir()) == []
