"""The command of the image starts, passes its health check, and exits on SIGTERM."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
TEXT = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
DEADLINE_SECONDS = 180.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Check until the condition is true; each check runs a process, so there is no further delay."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < give_up


def health_check() -> list[str]:
    """Return the arguments of Python in the image's health check."""
    *_, found = re.findall(r'CMD \["python", (.*)\]$', TEXT, re.MULTILINE)  # the last one: the image itself
    return list(json.loads(f"[{found}]"))


def test_the_worker_passes_its_health_check_and_exits_on_sigterm(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{DOCKER / 'app'}",
        "PENSTOCK_DATA_DIR": str(tmp_path / "state"),
        "PENSTOCK_METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
    }

    def alive() -> bool:
        check = [sys.executable, *health_check()]
        ran = subprocess.run(check, env=environment, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
        return ran.returncode == 0

    command = [sys.executable, "-m", "penstock", "worker", "shop:app"]
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
