"""What images and manifests run comes up, answers its health check, and ends in time when it is told to."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
DEADLINE_SECONDS = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Asked again until it is so, each question being a process of its own that takes its time."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < give_up


@pytest.mark.parametrize("kind", ["worker", "replayer", "monitor"])
def test_each_process_lives_by_its_health_check_and_ends_when_told(kind: str, tmp_path: Path) -> None:
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{DOCKER / 'app'}",
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_METRICS_ADDRESS": f"127.0.0.1:{port}",
        "PENSTOCK_MONITOR_ADDRESS": f"127.0.0.1:{port}",
    }

    def alive() -> bool:
        asked = [sys.executable, str(DOCKER / "healthcheck.py"), *([str(port)] if kind == "monitor" else [])]
        ran = subprocess.run(asked, env=environment, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
        return ran.returncode == 0

    command = [sys.executable, "-m", "penstock", kind, "shop:app"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            wait_until(alive, process)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, log
    assert not alive()
