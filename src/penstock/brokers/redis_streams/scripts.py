"""The Lua scripts beside this file: each is what its name says, with `common.lua` before it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMES = ("send", "take", "settle", "extend", "sweep", "doubts", "peek", "stats", "browse", "discard", "purge", "tidy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script as the server gets it, and the name it then knows it by."""

    name: str
    text: str
    sha: str


@cache
def scripts() -> Mapping[str, Script]:
    """Every script, by name."""
    folder = files(__package__).joinpath("lua")
    common = folder.joinpath("common.lua").read_text(encoding="utf-8")
    texts = {name: f"{common}\n{folder.joinpath(f'{name}.lua').read_text(encoding='utf-8')}" for name in NAMES}
    return {
        name: Script(name=name, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        for name, text in texts.items()
    }
