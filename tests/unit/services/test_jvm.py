import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.services import jvm

from penstock.pipeline.spark.java import find_java

CLASS_PATH = "conf:jars/a.jar"


@pytest.mark.parametrize("content", [None, b"no archive"], ids=["missing", "damaged"])
def test_a_jvm_ignores_a_missing_or_damaged_archive_silently(tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / "spark.jsa"
    if content is not None:
        archive.write_bytes(content)
    options = jvm.QUICK_JVM.replace(str(jvm.ARCHIVE), str(archive)).split()
    java = find_java(os.environ)

    def started(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(java.home / "bin" / "java"), *options, "-version"]
        return subprocess.run(command, env=jvm.environment(java), capture_output=True, text=True, check=True)

    ran, plain = started(*options), started()
    assert ran.stdout == plain.stdout == ""
    assert ran.stderr.splitlines()[0] == plain.stderr.splitlines()[0]
    assert "warning" not in ran.stderr.lower()


def test_an_archive_is_made_once_for_each_java_and_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "FOLDER", tmp_path)
    monkeypatch.setattr(jvm, "ARCHIVE", tmp_path / "spark.jsa")
    monkeypatch.setattr(jvm, "MADE_FOR", tmp_path / "made-for.txt")
    commands: list[list[str]] = []
    version = "one"

    def run(command: list[str], _: Mapping[str, str]) -> str:
        if "-Xinternalversion" in command:
            return version
        commands.append(command)
        for option in command:
            if option.startswith("-XX:SharedArchiveFile="):
                Path(option.partition("=")[2]).write_text(version)
        return f"{CLASS_PATH}\n"

    monkeypatch.setattr(jvm, "run", run)
    for _ in range(2):
        assert jvm.make_archive().read_text() == "one"
    assert len(commands) == 2, "one that uses Spark, one that dumps its classes"
    assert commands[1][-2:] == ["-cp", CLASS_PATH]
    version = "two"
    assert jvm.make_archive().read_text() == "two"
