"""The tutorial, followed to the letter in an empty folder."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"<!-- (run|file: (?P<file>\S+)) -->\n```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
SECONDS_MAX = 240


@dataclass(frozen=True)
class Block:
    """What the reader is told to run, or to write into a file."""

    file: str | None
    language: str
    text: str


def blocks() -> list[Block]:
    found = BLOCK.finditer(TUTORIAL.read_text(encoding="utf-8"))
    return [Block(match["file"], match["language"], match["text"]) for match in found]


@pytest.mark.spark
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    steps = blocks()
    assert len(steps) == 5
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for step in steps:
        if step.file is not None:
            (tmp_path / step.file).write_text(step.text, encoding="utf-8")
            continue
        command = [sys.executable, "-c", step.text] if step.language == "python" else ["bash", "-ec", step.text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert done.returncode == 0, f"{step.text}\n{done.stdout}\n{done.stderr}"
