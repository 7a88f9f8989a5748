"""`penstock init`: files to start from, none of them ever overwritten unless that is asked for.

What `penstock init --aws` writes: Terraform as it is in starter/aws, and the values of its variables as JSON.
"""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import Json, print_json, printable, talk
from penstock.errors import UsageError
from penstock.storage.address import S3Address, is_s3, s3_address

if TYPE_CHECKING:
    from penstock.config import Settings


WIDTH = 110
FOLDER = "starter"  # of the templates, beside this file
GITIGNORE = ".gitignore"
IGNORED = ".penstock/\n"  # the state: queue, ledger, locks
AWS = "for AWS"  # the options' panel
UNCHANGED = "Every file is there already, just as it would be written."

HEAD = """\
# Settings of Penstock. Everything here is commented out and shows the default.
#
# A setting is looked for in this order: a flag, where the command has one; the environment (PENSTOCK_LEASE_SECONDS for
# lease_seconds); a file penstock_lease_seconds in the folder that PENSTOCK_SECRETS_DIR names; this file; the default.
# `penstock config show` tells which value holds, and why. Passwords belong into the environment or the secrets folder.
"""

Folder = Annotated[
    str | None,
    typer.Argument(metavar="[DIR]", help="Where to; default: here, and with --aws the folder aws. Made if need be."),
]
Aws = Annotated[
    bool,
    typer.Option("--aws", help="Write Terraform instead: a queue, its dead letters, a bucket's notifications, rights."),
]
Queue = Annotated[str | None, typer.Option(help="The queue's name.", rich_help_panel=AWS)]
Bucket = Annotated[str | None, typer.Option(help="The bucket whose new objects are announced.", rich_help_panel=AWS)]
Prefix = Annotated[
    list[str] | None, typer.Option(help="Only those below; may be given several times.", rich_help_panel=AWS)
]
Table = Annotated[str | None, typer.Option(help="s3://BUCKET/PREFIX that workers write.", rich_help_panel=AWS)]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that are there with other content.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be written, and write nothing.")]


def init(
    folder: Folder = None,
    aws: Aws = False,
    queue: Queue = None,
    bucket: Bucket = None,
    prefix: Prefix = None,
    table: Table = None,
    force: Force = False,
    dry_run: DryRun = False,
    json_: Json = False,
) -> None:
    """Write a commented penstock.toml, an app.py to start from, a test of it, and a .gitignore unless there is one; or
    Terraform for AWS. Nothing is overwritten without --force."""
    if not aws and any(given is not None for given in (queue, bucket, prefix, table)):
        raise UsageError("--queue, --bucket, --prefix and --table are those of --aws; give it, or leave them out.")
    where = Path(folder or ("aws" if aws else "."))
    contents = _terraform(queue, bucket, prefix or [], table) if aws else _app(where)
    paths = {where / name: text for name, text in contents.items()}
    wanting = {path: text for path, text in paths.items() if not _holds(path, text)}
    in_the_way = [path for path in wanting if path.exists() or path.is_symlink()]
    _check_free(in_the_way, force=force or dry_run)
    if dry_run:
        _preview(wanting, in_the_way, json_=json_)
        return
    _write(where, wanting, force=force)
    _tell(wanting, json_=json_)
    if not json_:
        _say_next(where, aws=aws, bucket=bucket)


def settings_file() -> str:
    """A penstock.toml that holds every setting with its default, commented out: made from the settings themselves."""
    from penstock.config import Settings

    parts = [HEAD]
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        words = field.description or ""
        lines = textwrap.wrap(words[:1].upper() + words[1:], WIDTH)
        parts.append("".join(f"# {line}\n" for line in lines) + f"# {name} = {_toml(default)}\n")
    return "\n".join(parts)


def _toml(value: Any) -> str:
    """A default in TOML; JSON's strings, numbers and empty tables are TOML's too. Dots where there is none."""
    return "..." if value is None else json.dumps(value, ensure_ascii=False)


def _app(where: Path) -> Mapping[str, str]:
    from penstock.config import SETTINGS_FILE

    starter = files("penstock.cli") / FOLDER
    contents = {
        SETTINGS_FILE: settings_file(),
        "app.py": (starter / "app.py.txt").read_text(encoding="utf-8"),
        "test_app.py": (starter / "test_app.py.txt").read_text(encoding="utf-8"),
    }
    if not (where / GITIGNORE).exists():  # a repository that has one keeps it
        contents[GITIGNORE] = IGNORED
    return contents


def _terraform(queue: str | None, bucket: str | None, prefixes: list[str], table: str | None) -> Mapping[str, str]:
    from penstock.config import load_settings

    names = wanted(queue=queue, bucket=bucket, prefixes=prefixes, table=table)
    return aws_files(names, load_settings())


def _holds(path: Path, text: str) -> bool:
    """Whether a file is there already as it would be written, and so is left alone."""
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text


def _check_free(in_the_way: Sequence[Path], *, force: bool) -> None:
    """All of them are written, or none where one is in the way."""
    for path in in_the_way:
        if not (force and (path.is_file() or path.is_symlink())):
            raise UsageError(
                f"{path} is there already, and nothing is overwritten"
                f"{' but files' if force else ' without --force'}; move it away or name another folder."
            )


def _write(where: Path, paths: Mapping[Path, str], *, force: bool) -> None:
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The folder {where} cannot be made: {error.strerror}.") from error
    for path, text in paths.items():
        if force:
            path.unlink(missing_ok=True)  # a link is replaced, and what it leads to stays
        with path.open("x", encoding="utf-8") as file:
            file.write(text)


def _preview(paths: Mapping[Path, str], in_the_way: Sequence[Path], *, json_: bool) -> None:
    overwritten = [str(path) for path in in_the_way]
    if json_:
        texts = {str(path): text for path, text in paths.items()}
        print_json({"written": [], "would_write": texts, "would_overwrite": overwritten})
        return
    for path, text in paths.items():
        print(printable(f"# {path}"))
        print(text)
    if not paths:
        talk(UNCHANGED)
    if overwritten:
        talk(printable(f"Of these there are already, and would be overwritten with --force: {', '.join(overwritten)}."))


def _tell(paths: Mapping[Path, str], *, json_: bool) -> None:
    if json_:
        print_json({"written": [str(path) for path in paths]})
        return
    for path in paths:
        print(printable(str(path)))
    if not paths:
        talk(UNCHANGED)


def _say_next(where: Path, *, aws: bool, bucket: str | None) -> None:
    there = "" if where == Path() else f"cd {where} && "
    if aws:
        talk(printable(f"Next: {there}terraform init && terraform plan; its worker_environment is for the workers."))
        if bucket is not None:  # manage_notification is true unless somebody says otherwise
            talk(
                f"Beware: Terraform will replace the whole notification configuration of the bucket {bucket}. Where it "
                "announces objects elsewhere already, set manage_notification to false first."
            )
        return
    talk(printable(f'Next: {there}penstock send greetings --body \'{{"name": "Ada"}}\' && penstock worker app:app'))


AWS_FOLDER = "starter/aws"  # of the templates, beside this file
VALUES = "terraform.tfvars.json"  # read by Terraform and OpenTofu by themselves
TEMPLATES = ("versions.tf", "variables.tf", "queues.tf", "bucket.tf", "policies.tf", "outputs.tf")

_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,75}")  # 80 are SQS's own limit, and "-dead" comes behind it
_BUCKET = re.compile(r"(?!xn--|sthree-)[a-z0-9](?!.*\.\.)[a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_PART = re.compile(r"[A-Za-z0-9!_.'()-]+")
_PART_WORDS = "letters, digits and ! - _ . ' ( ), since S3 wants others encoded there, and IAM reads * as anything"


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterNames:
    """Names that were checked. None: what the variables have by default."""

    queue: str | None
    bucket: str | None
    prefixes: tuple[str, ...]  # each empty or with a slash at its end
    table: S3Address | None


def wanted(*, queue: str | None, bucket: str | None, prefixes: Sequence[str], table: str | None) -> StarterNames:
    """What a command line names. Raises `UsageError` for what AWS would not take, or what would go round in circles."""
    if queue is not None:
        _check_queue(queue)
    if bucket is not None:
        _check_bucket(bucket)
    elif prefixes:
        raise UsageError(f"The prefix {prefixes[0]} has no bucket; name it with --bucket.")
    found = tuple(_prefix(text) for text in prefixes)
    for longer, shorter in permutations(found, 2):
        if longer.startswith(shorter):
            raise UsageError(
                f"The prefixes {shorter or '(all)'} and {longer or '(all)'} overlap, which S3 refuses; keep the first."
            )
    where = None if table is None else _table(table)
    if where is not None and where.bucket == bucket:
        _check_apart(where, found or ("",))
    return StarterNames(queue=queue, bucket=bucket, prefixes=found, table=where)


def aws_files(names: StarterNames, settings: "Settings") -> Mapping[str, str]:
    """The text of each file, by its name."""
    starter = files("penstock.cli") / AWS_FOLDER
    texts = {name: (starter / name).read_text(encoding="utf-8") for name in TEMPLATES}
    return {**texts, VALUES: json.dumps(_values(names, settings), indent=2) + "\n"}


def _values(names: StarterNames, settings: "Settings") -> Mapping[str, Any]:
    given: dict[str, Any] = {
        "region": settings.aws_region,
        "queue": names.queue,
        "bucket": names.bucket,
        "prefixes": list(names.prefixes) or None,
        "table": None if names.table is None else {"bucket": names.table.bucket, "prefix": names.table.prefix},
        "max_attempts": settings.max_attempts,
        "lease_seconds": settings.lease_seconds,
        "stop_timeout_seconds": settings.stop_timeout_seconds,
    }
    return {name: value for name, value in given.items() if value is not None}


def _check_queue(name: str) -> None:
    if name.endswith(".fifo"):
        raise UsageError(f"The queue {name} is a FIFO queue, to which S3 sends nothing; name one without .fifo.")
    if not _QUEUE.fullmatch(name):
        raise UsageError(
            f"The queue's name {name!r} does not fit: up to 75 letters, digits, hyphens and underscores (SQS takes 80, "
            "and its dead letters' names are five longer)."
        )


def _check_bucket(name: str) -> None:
    if is_s3(name):
        raise UsageError(f"--bucket wants a name alone: --bucket {s3_address(name).bucket}, and --prefix for the rest.")
    if not _BUCKET.fullmatch(name) or _ADDRESS.fullmatch(name):
        raise UsageError(
            f"The bucket's name {name!r} does not fit: 3 to 63 lowercase letters, digits, dots and hyphens, a letter "
            "or digit at either end."
        )


def _prefix(text: str) -> str:
    """With one slash at its end, as a folder's; all of the bucket is empty."""
    if text.startswith("/"):
        raise UsageError(
            f"The prefix {text!r} begins with a slash, which S3 takes for a part of a key's name; leave that slash out "
            "(all of the bucket is no prefix at all)."
        )
    parts = text.removesuffix("/").split("/") if text else []
    if not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(f"The prefix {text!r} does not fit: {_PART_WORDS}; with slashes between its parts.")
    return "".join(f"{part}/" for part in parts)


def _table(text: str) -> S3Address:
    where = s3_address(text)
    _check_bucket(where.bucket)
    if not where.prefix:
        raise UsageError(f"The table {text} is a whole bucket; name a place in it: {text.rstrip('/')}/NAME.")
    return S3Address(bucket=where.bucket, prefix=_prefix(where.prefix).rstrip("/"))


def _check_apart(table: S3Address, prefixes: Sequence[str]) -> None:
    """Files of the table must not be announced as new objects, nor its objects read as a source."""
    for prefix in prefixes:
        for own in (f"{table.prefix}/", f"{table.prefix}_quarantine/"):
            if own.startswith(prefix) or prefix.startswith(own):
                raise UsageError(
                    f"The table {table} and the prefix {prefix or '(all of the bucket)'} hold one another, so its own "
                    "files would be announced as new objects; put the table elsewhere, or name prefixes with --prefix."
                )
