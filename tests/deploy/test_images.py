"""The image: hadolint finds nothing, its packages are locked, it handles signals, and its health check works."""

import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.tools import DEPLOY, ROOT, run

from penstock.app.loading import load_app
from penstock.config import Settings
from penstock.testing import TestWorker

DEADLINE_SECONDS = 180.0
DOCKER = DEPLOY / "docker"
FILE = DOCKER / "Dockerfile"
TOOLS_OF_OURS = {"pytest", "mypy", "ruff", "moto", "hypothesis", "cfn-lint", "hatchling", "kubernetes-validate"}


def instructions() -> Sequence[tuple[str, str]]:
    """Return each instruction with its arguments, continued lines joined, without comments."""
    lines = [line for line in FILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage by its name; the last stage, the image itself, has the name ''."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = "before"
    for instruction, text in instructions():
        if instruction == "FROM":
            name = text.partition(" AS ")[2]
        found.setdefault(name, []).append((instruction, text))
    return found


def last(instruction: str, stage: str = "") -> str:
    return [text for name, text in stages()[stage] if name == instruction][-1]


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([A-Za-z0-9_.\[\],-]+)==([^ \\]+)", text, re.MULTILINE))


def test_there_is_one_dockerfile_whose_default_is_the_image() -> None:
    assert [path.name for path in DEPLOY.rglob("*Dockerfile")] == ["Dockerfile"]
    assert list(stages()) == ["before", "app", "build", "aws", ""]


def test_hadolint_finds_nothing() -> None:
    done = run("hadolint", "--failure-threshold", "style", FILE)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('ENTRYPOINT ["tini", "--", "penstock"]', "ENTRYPOINT tini -- penstock"),
        ("--no-install-recommends ", ""),
        ("WORKDIR /src", "RUN cd /src"),
        ("--no-cache-dir ", ""),
    ],
)
def test_hadolint_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = FILE.read_text()
    assert right in text
    spoilt = tmp_path / "Dockerfile"
    spoilt.write_text(text.replace(right, wrong))
    assert run("hadolint", "--failure-threshold", "style", spoilt).returncode != 0


def test_signals_reach_penstock_and_no_process_runs_as_root() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["tini", "--", "penstock"]
    assert json.loads(last("CMD")) == ["worker", "shop:app"]
    assert last("STOPSIGNAL") == last("STOPSIGNAL", "aws") == "SIGTERM"
    assert (last("USER"), last("USER", "aws")) == ("10001:10001", "10002")
    assert "VOLUME" in dict(stages()[""])
    assert json.loads(last("ENTRYPOINT", "aws"))[0] == "moto_server"


def test_the_app_is_a_stage_that_a_build_context_can_replace() -> None:
    assert stages()["app"] == [("FROM", "scratch AS app"), ("COPY", "deploy/docker/app /")]
    assert ("COPY", "--from=app / /app/") in stages()["build"]
    assert ("COPY", "--from=build /app /app") in stages()[""]
    assert "--build-context app=" in FILE.read_text()


def test_every_install_is_checked_against_hashes() -> None:
    commands = [
        command
        for name, text in instructions()
        if name == "RUN"
        for command in re.findall(r"(?:uv )?pip install [^&;]*|uv build [^&;]*", text)
    ]
    assert len(commands) == 6
    for command in commands:
        assert "--require-hashes" in command or "--no-deps /wheels/*.whl" in command


def test_copied_files_exist_and_pass_the_ignore_file() -> None:
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    copied: set[str] = set()
    for name, text in instructions():
        if name == "COPY" and "--from" not in text:
            copied |= set(text.split()[:-1])
    both = {each.replace("${LOCK}", lock) for each in copied for lock in ("image", "image-spark")}
    assert both == {line[1:] for line in lines if line[:1] == "!"}
    assert [each for each in both if not (ROOT / each).exists()] == []
    assert "*" in lines  # keeps secrets out of images


def test_the_variables_of_the_image_are_settings() -> None:
    named = set(re.findall(r"\bPENSTOCK_(\w+)=", last("ENV")))
    assert {name.lower() for name in named} <= Settings.model_fields.keys()
    assert {"METRICS_ADDRESS", "DATA_DIR"} <= named


@pytest.mark.parametrize("lock", ["image", "image-spark", "local-aws"])
def test_images_have_the_tested_versions_and_no_tools(lock: str) -> None:
    found, tested = pins(lock), pins("dev")
    assert {name: version for name, version in found.items() if tested.get(name) != version} == {}
    ours = TOOLS_OF_OURS - ({"moto", "cfn-lint"} if lock == "local-aws" else set())
    assert {name.partition("[")[0] for name in found} & ours == set()
    assert ("pyspark" in found, "deltalake" in found) == (lock == "image-spark", lock == "image-spark")


def test_the_image_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=; ]", each)[0] for extra in project["optional-dependencies"].values() for each in extra}
    assert wanted - {"penstock"} - {name.partition("[")[0] for name in pins("image-spark")} == set()


def test_the_example_app_works(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(DOCKER / "app"))
    monkeypatch.setitem(sys.modules, "shop", None)  # other tests have modules of that name, before and after this one
    monkeypatch.delitem(sys.modules, "shop")
    with TestWorker(load_app("shop:app")) as worker:
        worker.send("orders", b'{"id": 1}')
        worker.run_until_empty()
    assert '{"id": 1}' in capsys.readouterr().out


class FakeEndpoint(ThreadingHTTPServer):
    """A fake metrics endpoint of a process."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, FakeEndpoint)
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_SECONDS)


def test_the_health_check_asks_the_worker_and_uses_no_proxy(endpoint: FakeEndpoint) -> None:
    program, *arguments = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"
    assert f"PENSTOCK_METRICS_ADDRESS=0.0.0.0:{last('EXPOSE')}" in last("ENV")

    def exit_code() -> int:
        return subprocess.run(
            [sys.executable, *arguments],
            env={
                "http_proxy": "http://127.0.0.1:1",
                "PENSTOCK_METRICS_ADDRESS": f"0.0.0.0:{endpoint.server_port}",
            },
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        ).returncode

    assert exit_code() == 0
    assert endpoint.asked == ["/livez"]
    endpoint.status = 503
    assert exit_code() == 1
    endpoint.server_close()
    assert exit_code() == 1
