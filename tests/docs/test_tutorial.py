"""The pages that tell a person what to type, followed to the letter in an empty folder."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Pages that are read one after the other share a folder: what the README makes, the operating guide looks at.
JOURNEYS = {"tutorial": ("docs/tutorial.md",), "readme": ("README.md", "docs/operating.md")}
BLOCK = re.compile(r"<!-- (?:run|file: (?P<file>\S+)) -->\n```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
# A process that read a table with deltalake 1.6 and pyarrow 26 now and then aborts while Python is taken down, after
# all is done and said ("terminate called without an active exception"). What the page shows is done by then.
LEAVE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
SECONDS_MAX = 240


@dataclass(frozen=True)
class Block:
    """What the reader is told to run, or to write into a file."""

    file: str | None
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for match in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        yield Block(match["file"], match["language"], match["text"])


@pytest.mark.spark
@pytest.mark.parametrize("pages", JOURNEYS.values(), ids=JOURNEYS)
def test_what_a_page_says_works_as_it_stands(tmp_path: Path, pages: Sequence[str]) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for page in pages:
        steps = list(blocks(page))
        assert steps, f"{page} has nothing to run"
        for step in steps:
            follow(step, tmp_path, environment)


def follow(step: Block, folder: Path, environment: dict[str, str]) -> None:
    if step.file is not None:
        (folder / step.file).write_text(step.text, encoding="utf-8")
        return
    python = [sys.executable, "-c", step.text + LEAVE]
    command = python if step.language == "python" else ["bash", "-ec", step.text]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, f"{step.text}\n{done.stdout}\n{done.stderr}"
