"""Images: hadolint finds nothing, what they install is locked, what they run is a signal's first address."""

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

DEADLINE_SECONDS = 60.0
DOCKER = DEPLOY / "docker"
DOCKERFILES = sorted(DOCKER.glob("*Dockerfile"))
HEALTHCHECK = DOCKER / "healthcheck.py"
TOOLS_OF_OURS = {"pytest", "mypy", "ruff", "moto", "hypothesis", "cfn-lint", "hatchling", "kubernetes-validate"}


def instructions(path: Path) -> Sequence[tuple[str, str]]:
    """Each with its text, lines that go on joined, without comments."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def last(path: Path, instruction: str) -> str:
    return [text for name, text in instructions(path) if name == instruction][-1]


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    return dict(re.findall(r"^([A-Za-z0-9_.\[\],-]+)==([^ \\]+)", text, re.MULTILINE))


def test_all_of_them_are_looked_at() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile", "app.Dockerfile", "aws.Dockerfile"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    said = run("hadolint", "--failure-threshold", "style", path)
    assert (said.returncode, said.stdout) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('ENTRYPOINT ["tini", "--", "penstock"]', "ENTRYPOINT tini -- penstock"),
        ("--no-install-recommends ", ""),
        ("WORKDIR /src", "RUN cd /src"),
        ("--no-cache-dir ", ""),
    ],
)
def test_hadolint_would_say_something(tmp_path: Path, right: str, wrong: str) -> None:
    text = (DOCKER / "Dockerfile").read_text()
    assert right in text
    spoilt = tmp_path / "Dockerfile"
    spoilt.write_text(text.replace(right, wrong))
    assert run("hadolint", "--failure-threshold", "style", spoilt).returncode != 0


def test_signals_reach_penstock_and_nobody_is_root() -> None:
    path = DOCKER / "Dockerfile"
    assert json.loads(last(path, "ENTRYPOINT")) == ["tini", "--", "penstock"]
    assert json.loads(last(path, "CMD"))[0] == "worker"
    assert last(path, "STOPSIGNAL") == "SIGTERM"
    assert last(path, "USER") == "10001:10001"
    assert "VOLUME" in dict(instructions(path))
    for other in DOCKERFILES[1:]:
        assert last(other, "USER") if other.name == "aws.Dockerfile" else "USER" not in dict(instructions(other))
        for name in ("ENTRYPOINT", "CMD"):
            for text in [text for each, text in instructions(other) if each == name]:
                assert json.loads(text)


def test_the_image_is_asked_whether_it_lives_without_curl() -> None:
    words = json.loads(last(DOCKER / "Dockerfile", "HEALTHCHECK").partition("CMD ")[2])
    assert words == ["python", "/opt/penstock/healthcheck.py"]
    assert ("COPY", "deploy/docker/healthcheck.py /opt/penstock/healthcheck.py") in instructions(DOCKER / "Dockerfile")


def test_every_install_is_checked_against_hashes() -> None:
    for path in DOCKERFILES:
        for _, text in [each for each in instructions(path) if each[0] == "RUN"]:
            for command in re.findall(r"(?:uv )?pip install [^&]*|uv build [^&]*", text):
                assert "--require-hashes" in command or "--no-deps /wheels/*.whl" in command


def test_what_is_copied_is_there_and_gets_past_the_ignore_file() -> None:
    allowed = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied: set[str] = set()
    for name, text in instructions(DOCKER / "Dockerfile"):
        if name == "COPY" and "--from" not in text:
            copied |= set(text.split()[:-1])
    both = {each.replace("${LOCK}", lock) for each in copied for lock in ("image", "image-spark")}
    assert both == allowed
    assert [each for each in both if not (ROOT / each).exists()] == []
    assert "!app" in (DOCKER / ".dockerignore").read_text()  # and no secrets
    assert "*" in (DOCKER / ".dockerignore").read_text().splitlines()


def test_the_variables_of_the_image_are_settings() -> None:
    named = re.findall(r"\bPENSTOCK_(\w+)=", (DOCKER / "Dockerfile").read_text())
    assert {name.lower() for name in named} <= Settings.model_fields.keys()
    assert {"METRICS_ADDRESS", "MONITOR_ADDRESS", "STATE"} <= set(named)


@pytest.mark.parametrize("lock", ["image", "image-spark", "local-aws"])
def test_images_have_what_is_tested_here_and_no_more(lock: str) -> None:
    found, tested = pins(lock), pins("dev")
    assert {name: version for name, version in found.items() if tested.get(name) != version} == {}
    ours = TOOLS_OF_OURS - ({"moto", "cfn-lint"} if lock == "local-aws" else set())
    assert {name.partition("[")[0] for name in found} & ours == set()
    assert ("pyspark" in found, "deltalake" in found) == (lock == "image-spark", lock == "image-spark")


def test_the_image_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=; ]", each)[0] for extra in project["optional-dependencies"].values() for each in extra}
    assert wanted - {"penstock"} - {name.partition("[")[0] for name in pins("image-spark")} == set()


def test_the_example_works(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(DOCKER / "app"))
    monkeypatch.setitem(sys.modules, "shop", None)  # other tests have modules of that name, before and after this one
    monkeypatch.delitem(sys.modules, "shop")
    with TestWorker(load_app("shop:app")) as worker:
        worker.send("orders", b'{"id": 1}')
        worker.run_until_empty()
    assert '{"id": 1}' in capsys.readouterr().out


class Answering(ThreadingHTTPServer):
    """A process's endpoint."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Answering)
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        """Not on our stderr."""


@pytest.fixture
def endpoint() -> Iterator[Answering]:
    with Answering() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(DEADLINE_SECONDS)


def ask(*arguments: str, address: str | None = None) -> int:
    environment = {"http_proxy": "http://127.0.0.1:1"} | (
        {} if address is None else {"PENSTOCK_METRICS_ADDRESS": address}
    )
    return subprocess.run(
        [sys.executable, HEALTHCHECK, *arguments],
        env=environment,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    ).returncode


def test_the_health_check_asks_the_loop(endpoint: Answering) -> None:
    assert ask(address=f"0.0.0.0:{endpoint.server_port}") == 0
    assert ask(str(endpoint.server_port)) == 0
    assert endpoint.asked == ["/livez", "/livez"]
    endpoint.status = 503
    assert ask(str(endpoint.server_port)) == 1
    endpoint.server_close()
    assert ask(str(endpoint.server_port)) == 1
