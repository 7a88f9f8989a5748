"""The Redis user that docs/run/redis.md describes, with exactly the permissions of the page."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "run" / "redis.md"
PASSWORD = "PASSWORD"  # as the page has it


def documented_user() -> str:
    """Return the line of an ACL file for the user shop."""
    found = re.search(r"^```\n(user shop .*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None, f"{PAGE.name} describes no user any more"
    return " ".join(found[1].split())


def documented_rights() -> list[str]:
    """Return the user's permissions, each as ``+command`` or ``+command|subcommand``."""
    return re.findall(r"\+\S+", documented_user())
