"""`penstock init`: write the files of a new app; with --aws, Terraform (starter/aws) and its variables as JSON.

Existing files are not overwritten without --force.
"""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Json, print_json, printable, talk
from penstock.config import (
    SECTIONS,
    SETTINGS_FILE,
    Audience,
    Settings,
    audience,
    load_settings,
    name_of,
    section_of,
    shown,
)
from penstock.errors import UsageError
from penstock.storage.address import S3Address, is_s3, s3_address

WIDTH = 110
FOLDER = "starter"  # of the templates, beside this file
GITIGNORE = ".gitignore"
IGNORED = ".penstock/\n"  # the data directory: queue, ledger, locks
APP = "app:app"  # the app in the app.py of the starter
AWS = "for AWS"  # the options' panel
UNCHANGED = "Every file exists already with the same content."

HEAD = """\
# Settings of Penstock. A setting that is commented out shows its default.
#
# Precedence: flag > environment > secrets directory > this file > default. A setting is named by its section and name:
# concurrency in [worker] is PENSTOCK_WORKER_CONCURRENCY in the environment, and a file penstock_worker_concurrency in
# the directory that PENSTOCK_SECRETS_DIR names. Put passwords there, not here.
# Durations are texts such as "90s", "2m", "1h30m" or "3d", or numbers of seconds.
# `penstock admin config show` prints the settings in effect.{more}
"""
MORE = " `penstock init --full` writes all settings."

Folder = Annotated[
    str | None,
    typer.Argument(
        metavar="[DIR]", help="The folder; created if missing. Default: this one; with --aws the folder aws."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Write all settings to penstock.toml, not only the common ones.")]
Aws = Annotated[
    bool,
    typer.Option("--aws", help="Write Terraform instead: a queue, its DLQs, a bucket's notifications, IAM policies."),
]
Queue = Annotated[str | None, typer.Option(help="The name of the queue.", rich_help_panel=AWS)]
Bucket = Annotated[str | None, typer.Option(help="The bucket that sends notifications.", rich_help_panel=AWS)]
Prefix = Annotated[
    list[str] | None, typer.Option(help="Only objects below this prefix; may be repeated.", rich_help_panel=AWS)
]
Table = Annotated[
    str | None, typer.Option(help="The table that workers write: s3://BUCKET/PREFIX.", rich_help_panel=AWS)
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files that have other content.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the files instead of writing them.")]


def init(
    folder: Folder = None,
    full: Full = False,
    aws: Aws = False,
    queue: Queue = None,
    bucket: Bucket = None,
    prefix: Prefix = None,
    table: Table = None,
    force: Force = False,
    dry_run: DryRun = False,
    json_: Json = False,
) -> None:
    """Write a first app with settings and a test, or Terraform.

    Writes penstock.toml with comments, app.py, a test of it, and .gitignore if there is none; with --aws, Terraform.
    Overwrites no existing file without --force.
    """
    if not aws and any(given is not None for given in (queue, bucket, prefix, table)):
        raise UsageError("--queue, --bucket, --prefix and --table need --aws; add it, or leave them out.")
    if aws and full:
        raise UsageError("--full concerns penstock.toml, which --aws does not write; leave out one of the two.")
    where = Path(folder or ("aws" if aws else "."))
    contents = _terraform(queue, bucket, prefix or [], table) if aws else _app(where, full=full)
    paths = {where / name: text for name, text in contents.items()}
    wanting = {path: text for path, text in paths.items() if not _holds(path, text)}
    in_the_way = [path for path in wanting if path.exists() or path.is_symlink()]
    _check_free(in_the_way, force=force or dry_run)
    if dry_run:
        _preview(wanting, in_the_way, json_=json_)
        return
    _write(where, wanting, force=force)
    _print_paths(wanting, json_=json_)
    if not json_:
        _print_next_steps(where, aws=aws, bucket=bucket)


def settings_file(*, full: bool = False, app: str | None = None) -> str:
    """Return a penstock.toml: ``app``, if given, and the common settings, or with ``full`` all, commented out."""
    parts = [HEAD.format(more="" if full else MORE)]
    for section in ("", *SECTIONS):
        entries = [_entry(field, {"app": app}.get(field)) for field in _listed(section, full=full)]
        if section and entries:
            entries[0] = f"# {SECTIONS[section]}\n[{section}]\n\n{entries[0]}"
        parts.extend(entries)
    return "\n".join(parts)


def _listed(section: str, *, full: bool) -> Sequence[str]:
    fields = [field for field in Settings.model_fields if section_of(field) == section]
    return [
        field
        for field in fields
        if (audience(field) is not Audience.HIDDEN if full else audience(field) is Audience.STARTER)
    ]


def _entry(field: str, value: str | None) -> str:
    """Return the lines of one setting: its description, and its value or, commented out, its default."""
    info = Settings.model_fields[field]
    lines = textwrap.wrap(info.description or "", WIDTH)
    default = shown(field, info.get_default(call_default_factory=True))
    assignment = f"# {name_of(field)} = {_toml(default)}" if value is None else f"{name_of(field)} = {_toml(value)}"
    return "".join(f"# {line}\n" for line in lines) + f"{assignment}\n"


def _toml(value: Any) -> str:
    """Return a default in TOML, whose strings, numbers and empty tables are written as in JSON; dots if it is unset."""
    return "..." if value is None else json.dumps(value, ensure_ascii=False)


def _app(where: Path, *, full: bool) -> Mapping[str, str]:
    starter = files("penstock.cli") / FOLDER
    contents = {
        SETTINGS_FILE: settings_file(full=full, app=APP),
        "app.py": (starter / "app.py.txt").read_text(encoding="utf-8"),
        "test_app.py": (starter / "test_app.py.txt").read_text(encoding="utf-8"),
    }
    if not (where / GITIGNORE).exists():  # a repository that has one keeps it
        contents[GITIGNORE] = IGNORED
    return contents


def _terraform(queue: str | None, bucket: str | None, prefixes: list[str], table: str | None) -> Mapping[str, str]:
    names = wanted(queue=queue, bucket=bucket, prefixes=prefixes, table=table)
    return aws_files(names, load_settings())


def _holds(path: Path, text: str) -> bool:
    """Return True if the file exists with this content already."""
    return path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text


def _check_free(in_the_way: Sequence[Path], *, force: bool) -> None:
    """Raise `UsageError` if an existing file would be overwritten, before any file is written."""
    for path in in_the_way:
        if not (force and (path.is_file() or path.is_symlink())):
            raise UsageError(
                f"{path} exists already and is not overwritten"
                f"{': it is not a file' if force else ' without --force'}; move it away or name another folder."
            )


def _write(where: Path, paths: Mapping[Path, str], *, force: bool) -> None:
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The folder {where} cannot be created: {error.strerror}.") from error
    for path, text in paths.items():
        if force:
            path.unlink(missing_ok=True)  # replaces a link, not its target
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
        talk(printable(f"These files exist; --force would overwrite them: {', '.join(overwritten)}."))


def _print_paths(paths: Mapping[Path, str], *, json_: bool) -> None:
    if json_:
        print_json({"written": [str(path) for path in paths]})
        return
    for path in paths:
        print(printable(str(path)))
    if not paths:
        talk(UNCHANGED)


def _print_next_steps(where: Path, *, aws: bool, bucket: str | None) -> None:
    there = "" if where == Path() else f"cd {where} && "
    if aws:
        talk(
            printable(
                f"Next: {there}terraform init && terraform plan. Set its output worker_environment in the workers."
            )
        )
        if bucket is not None:  # manage_notification is true by default
            talk(
                f"Beware: Terraform will replace the whole notification configuration of the bucket {bucket}. If it "
                "already sends notifications elsewhere, set manage_notification to false first."
            )
        return
    talk(printable(f'Next: {there}penstock send greetings --body \'{{"name": "Ada"}}\' && penstock worker'))


AWS_FOLDER = "starter/aws"  # of the templates, beside this file
VALUES = "terraform.tfvars.json"  # Terraform and OpenTofu read it automatically
TEMPLATES = ("versions.tf", "variables.tf", "queues.tf", "bucket.tf", "policies.tf", "outputs.tf")

_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,75}")  # SQS allows 80, and "-dead" is appended
_BUCKET = re.compile(r"(?!xn--|sthree-)[a-z0-9](?!.*\.\.)[a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_PART = re.compile(r"[A-Za-z0-9!_.'()-]+")
_PART_RULE = "letters, digits and ! - _ . ' ( ), since S3 requires others encoded, and * is a wildcard for IAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class StarterNames:
    """Checked names for the Terraform variables. None: the default of the variable."""

    queue: str | None
    bucket: str | None
    prefixes: tuple[str, ...]  # each empty or ending in a slash
    table: S3Address | None


def wanted(*, queue: str | None, bucket: str | None, prefixes: Sequence[str], table: str | None) -> StarterNames:
    """Return the checked names. Raise `UsageError` for invalid names and overlapping addresses."""
    if queue is not None:
        _check_queue(queue)
    if bucket is not None:
        _check_bucket(bucket)
    elif prefixes:
        raise UsageError(f"The prefix {prefixes[0]} has no bucket; add --bucket.")
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


def aws_files(names: StarterNames, settings: Settings) -> Mapping[str, str]:
    """Return the text of each file by its name."""
    starter = files("penstock.cli") / AWS_FOLDER
    texts = {name: (starter / name).read_text(encoding="utf-8") for name in TEMPLATES}
    return {**texts, VALUES: json.dumps(_values(names, settings), indent=2) + "\n"}


def _values(names: StarterNames, settings: Settings) -> Mapping[str, Any]:
    given: dict[str, Any] = {
        "region": settings.aws_region,
        "queue": names.queue,
        "bucket": names.bucket,
        "prefixes": list(names.prefixes) or None,
        "table": None if names.table is None else {"bucket": names.table.bucket, "prefix": names.table.prefix},
        "max_attempts": settings.objects_max_attempts,
        "lease_seconds": settings.worker_lease,
        "stop_timeout_seconds": settings.worker_stop_timeout,
        "dead_letters_replay": settings.dead_letters_replay,
        "dead_letters_archive": settings.dead_letters_archive is not None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _check_queue(name: str) -> None:
    if name.endswith(".fifo"):
        raise UsageError(f"The queue {name} is a FIFO queue, to which S3 sends nothing; use a name without .fifo.")
    if not _QUEUE.fullmatch(name):
        raise UsageError(
            f"The queue name {name!r} is invalid: use up to 75 letters, digits, hyphens and underscores (SQS allows "
            "80, and the names of the DLQs are five characters longer)."
        )


def _check_bucket(name: str) -> None:
    if is_s3(name):
        raise UsageError(
            f"--bucket takes only a name: use --bucket {s3_address(name).bucket}, and --prefix for the rest."
        )
    if not _BUCKET.fullmatch(name) or _ADDRESS.fullmatch(name):
        raise UsageError(
            f"The bucket name {name!r} is invalid: use 3 to 63 lowercase letters, digits, dots and hyphens, with a "
            "letter or digit at either end."
        )


def _prefix(text: str) -> str:
    """Return the prefix with one slash at its end; empty means the whole bucket."""
    if text.startswith("/"):
        raise UsageError(
            f"The prefix {text!r} begins with a slash, which S3 treats as part of the key; remove it (for the whole "
            "bucket, leave out --prefix)."
        )
    parts = text.removesuffix("/").split("/") if text else []
    if not all(_PART.fullmatch(part) for part in parts):
        raise UsageError(f"The prefix {text!r} is invalid: use {_PART_RULE}; with slashes between the parts.")
    return "".join(f"{part}/" for part in parts)


def _table(text: str) -> S3Address:
    where = s3_address(text)
    _check_bucket(where.bucket)
    if not where.prefix:
        raise UsageError(f"The table {text} is a whole bucket; add a prefix: {text.rstrip('/')}/NAME.")
    return S3Address(bucket=where.bucket, prefix=_prefix(where.prefix).rstrip("/"))


def _check_apart(table: S3Address, prefixes: Sequence[str]) -> None:
    """Raise `UsageError` if the table overlaps with a prefix: its own files would trigger notifications."""
    for prefix in prefixes:
        for own in (f"{table.prefix}/", f"{table.prefix}_quarantine/"):
            if own.startswith(prefix) or prefix.startswith(own):
                raise UsageError(
                    f"The table {table} and the prefix {prefix or '(the whole bucket)'} overlap, so the table's own "
                    "files would trigger notifications; put the table elsewhere, or name other prefixes with --prefix."
                )
