"""`penstock init`: files to start from, none of them ever overwritten unless that is asked for."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Json, print_json, printable, talk
from penstock.errors import UsageError

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
    from penstock.cli.aws_files import aws_files, wanted
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
