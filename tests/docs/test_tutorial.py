"""The tutorials and other pages with steps, followed literally in an empty folder.

A comment before a block tells the reader's action. ``run``: run it. ``run until: TEXT xN``: start it, and send SIGTERM
once it has printed the text N times; or ``run until: FILE exists``; or several conditions, joined by ``and``.
``file: NAME``: write it to that file. ``more: NAME``: append it. ``shows``: the run before must print these lines, with
any width of columns.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"<!-- (?P<do>run|run until|file|more|shows)(?:: (?P<value>[^\n]+?))? -->\n```(?P<language>\w+)\n(?P<text>.*?)```",
    re.DOTALL,
)
# With deltalake 1.6 and pyarrow 26, a process that read a table sometimes aborts during Python's shutdown ("terminate
# called without an active exception"), after the steps of the page. So it exits without that shutdown.
LEAVE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
SECONDS_MAX = 240
UNTIL_SECONDS_MAX = 150
END_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A page, or one of its sections (``## TITLE``)."""

    page: str
    title: str | None = None

    def text(self) -> str:
        text = (ROOT / self.page).read_text(encoding="utf-8")
        if self.title is None:
            return text
        _, found, rest = text.partition(f"\n## {self.title}\n")
        assert found, f"{self.page} has no section {self.title}"
        return rest.partition("\n## ")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One step of a page: the action, its argument, and the text."""

    do: str
    value: str
    language: str
    text: str


# Parts of one entry share a folder: the page on reading tables uses the table that the README creates.
WITHOUT_SPARK = {
    "messages": (Part(page="docs/learn/messages.md"),),
    "from Celery": (Part(page="docs/learn/from-celery.md"),),
    "from Sidekiq": (Part(page="docs/learn/from-sidekiq.md"),),
    "from Lambda": (Part(page="docs/learn/from-lambda.md"),),
    "transactions": (Part(page="docs/use/transactions.md", title="An order and its message"),),
}
WITH_SPARK = {
    "files": (Part(page="docs/learn/files.md"),),
    "from Auto Loader": (Part(page="docs/learn/from-auto-loader.md"),),
    "merge": (Part(page="docs/use/merge.md"),),
    "readme": (Part(page="README.md"), Part(page="docs/use/reading-tables.md")),
}
PAGES = ("README.md", *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))))


@pytest.mark.parametrize("parts", WITHOUT_SPARK.values(), ids=WITHOUT_SPARK)
def test_the_steps_of_a_page_work_without_spark(tmp_path: Path, parts: tuple[Part, ...]) -> None:
    follow_and_check(parts, tmp_path)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "parts",
    [
        # the README has the same commands
        pytest.param(parts, id=name, marks=() if name == "readme" else pytest.mark.slow)
        for name, parts in WITH_SPARK.items()
    ],
)
def test_the_steps_of_a_page_work(tmp_path: Path, parts: tuple[Part, ...]) -> None:
    follow_and_check(parts, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_marked_block_is_followed(page: str) -> None:
    text = Part(page=page).text()
    parts = [part for parts in (*WITHOUT_SPARK.values(), *WITH_SPARK.values()) for part in parts if part.page == page]
    marks = re.findall(r"^<!-- (?!example: |growth: |end -->)", text, re.MULTILINE)
    assert len(marks) == sum(len(list(blocks(part))) for part in parts)


def test_a_text_missing_from_the_output_is_a_failure() -> None:
    block = Block(do="shows", value="", language="text", text="b  2\n")
    compare(block, "a 1\nb      2\n")
    with pytest.raises(AssertionError, match="b 2"):
        compare(block, "a 1\nb 3\n")


def blocks(part: Part) -> Iterator[Block]:
    for match in BLOCK.finditer(part.text()):
        yield Block(do=match["do"], value=match["value"] or "", language=match["language"], text=match["text"])


def follow_and_check(parts: tuple[Part, ...], folder: Path) -> None:
    """Follow the steps of pages: every command must succeed and print the lines that the page shows."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONUNBUFFERED": "1",  # as at a terminal, output appears immediately
        "PENSTOCK_LOG_LEVEL": "debug",  # a step may wait for the start of a message, which is not logged at info
    }
    for part in parts:
        steps = list(blocks(part))
        assert steps, f"{part} has nothing to run"
        shown = ""
        for step in steps:
            match step.do:
                case "file":
                    (folder / step.value).write_text(step.text, encoding="utf-8")
                case "more":
                    with (folder / step.value).open("a", encoding="utf-8") as file:
                        file.write(f"\n\n{step.text}")
                case "shows":
                    compare(step, shown)
                case "run":
                    shown = run(step, folder, environment)
                case "run until":
                    shown = run_until(step, folder, environment)


def compare(step: Block, shown: str) -> None:
    there = _narrow(shown)
    for line in step.text.splitlines():
        assert _narrow(line) in there, f"not shown: {_narrow(line)}\n{shown}"


def run(step: Block, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        _command(step),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{step.text}\n{done.stdout}"
    return done.stdout


def run_until(step: Block, folder: Path, environment: Mapping[str, str]) -> str:
    """Start a step and stop it as a platform would, with SIGTERM to this process alone. It must exit with 0."""
    output = folder / ".output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-ec", f"exec {step.text}"],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        reached = _reached(step.value, folder, output)
        ends_at = time.monotonic() + UNTIL_SECONDS_MAX
        while not reached():
            output_text = output.read_text(encoding="utf-8")
            assert process.poll() is None, f"{step.text} ended before {step.value}\n{output_text}"
            assert time.monotonic() < ends_at, f"{step.text} did not reach {step.value}\n{output_text}"
            time.sleep(0.05)  # between two looks at a file that another process writes
        process.send_signal(signal.SIGTERM)
        exit_code = process.wait(END_SECONDS_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output_text = output.read_text(encoding="utf-8")
    assert exit_code == 0, f"{step.text}\n{output_text}"
    return output_text


def _command(step: Block) -> list[str]:
    if step.language == "python":
        return [sys.executable, "-c", step.text + LEAVE]
    return ["bash", "-ec", step.text]


def _reached(condition: str, folder: Path, output: Path) -> Callable[[], bool]:
    if " and " in condition:
        all_of = [_reached(part, folder, output) for part in condition.split(" and ")]
        return lambda: all(reached() for reached in all_of)
    if condition.endswith(" exists"):
        return (folder / condition.removesuffix(" exists")).exists
    text, _, times = condition.partition(" x")
    return lambda: output.read_text(encoding="utf-8").count(text) >= int(times or 1)


def _narrow(text: str) -> str:
    """Replace several blanks by one."""
    return re.sub(r"[ \t]+", " ", text).rstrip(" ")
