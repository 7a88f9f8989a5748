"""`penstock init`: files to start from, none of them ever overwritten."""

import json
import textwrap
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.output import Json, print_json, printable, talk
from penstock.errors import UsageError

WIDTH = 110
TEMPLATES = "starter"  # beside this file
GITIGNORE = ".gitignore"
IGNORED = ".penstock/\n"  # the state: queue, ledger, locks

HEAD = """\
# Settings of Penstock. Everything here is commented out and shows the default.
#
# A setting is looked for in this order: a flag, where the command has one; the environment (PENSTOCK_LEASE_SECONDS for
# lease_seconds); a file penstock_lease_seconds in the folder that PENSTOCK_SECRETS_DIR names; this file; the default.
# `penstock config show` tells which value holds, and why. Passwords belong into the environment or the secrets folder.
"""


def init(
    folder: Annotated[str, typer.Argument(metavar="[DIR]", help="Where to; default: here. Made if need be.")] = ".",
    json_: Json = False,
) -> None:
    """Write a commented penstock.toml, an app.py to start from, a test of it, and a .gitignore unless there is one.
    Nothing is ever overwritten."""
    from penstock.config import SETTINGS_FILE

    starter = files("penstock.cli") / TEMPLATES
    contents = {
        SETTINGS_FILE: settings_file(),
        "app.py": (starter / "app.py.txt").read_text(encoding="utf-8"),
        "test_app.py": (starter / "test_app.py.txt").read_text(encoding="utf-8"),
    }
    if not (Path(folder) / GITIGNORE).exists():  # a repository that has one keeps it
        contents[GITIGNORE] = IGNORED
    written = _write(Path(folder), contents)
    if json_:
        print_json({"written": [str(path) for path in written]})
        return
    for path in written:
        print(printable(str(path)))
    there = "" if folder == "." else f"cd {folder} && "
    talk(printable(f'Next: {there}penstock send greetings --body \'{{"name": "Ada"}}\' && penstock worker app:app'))


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


def _write(folder: Path, contents: Mapping[str, str]) -> list[Path]:
    """All of them, or none where one is in the way."""
    paths = {folder / name: text for name, text in contents.items()}
    for path in paths:
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"{path} is there already, and nothing is overwritten; move it away or name another folder."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made: {error.strerror}.") from error
    for path, text in paths.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return list(paths)
