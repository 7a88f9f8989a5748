"""The contestants: the commands of each, and the keys that show completion.

The settings of a contestant and their reasons are beside its code: peers/NAME.py, node/NAME.ts, ruby/sidekiq_peer.rb.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.redis.server import Left

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "bench-redis"
NODE = BUILD / "node"
OLDER = ROOT / ".venv-bench-older" / "bin" / "python"  # for those that need an older redis-py
CONCURRENCY = 100


class NotHere(Exception):
    """A contestant that this machine cannot run, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    name: str
    left: Left
    worker: tuple[str, ...]
    sender: tuple[str, ...]  # before FIRST COUNT SECONDS MODE
    about: tuple[str, ...]  # prints the version; fails where it is not installed
    folder: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    bulk: bool = False  # it can send many at once
    empty_concurrency: int = (
        CONCURRENCY  # for handlers that do nothing: threads that never wait only disturb each other
    )
    waiting_concurrency: int = CONCURRENCY  # for handlers that sleep
    share: int = 1  # of the empty messages it gets one in so many, to end in time
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # what another host would have, where that matters

    def version(self, environment: Mapping[str, str]) -> str:
        """Raises `NotHere`."""
        try:
            answered = subprocess.run(
                self.about,
                cwd=self.folder,
                env=dict(environment),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except FileNotFoundError as error:
            raise NotHere(f"{error.filename} is not installed") from error
        if answered.returncode:
            raise NotHere((answered.stderr.strip().splitlines() or ["it does not start"])[-1])
        return answered.stdout.strip()


def contestants() -> list[Contestant]:
    return [
        _penstock("plain"),
        _penstock("async"),
        _penstock("plain", processes=2),
        _python("arq", left=Left(sorted_sets=("arq:queue",)), interpreter=OLDER),
        _python("saq", left=Left(sorted_sets=("saq:bench:incomplete",)), interpreter=OLDER),
        _python("streaq", left=Left(streams=("streaq:bench:queues:normal",)), bulk=True),
        _python("taskiq", left=Left(groups=("bench",))),
        # Threads for empty handlers, as measured: dramatiq is three times as fast with its default of 8 as with 100,
        # huey twice as fast with 1. Celery prefetches four messages a thread and is fastest with 100.
        _python("dramatiq", left=Left(hashes=("dramatiq:bench.msgs",)), empty_concurrency=8),
        _python("celery", left=Left(lists=("bench",), hashes=("unacked",))),
        _python(
            "rq",
            left=Left(lists=("rq:queue:bench", "rq:queue:bench:intermediate"), sorted_sets=("rq:wip:bench",)),
            bulk=True,
            empty_concurrency=1,
            waiting_concurrency=1,
            share=10,
        ),
        _python("huey", left=Left(lists=("huey.redis.bench",)), empty_concurrency=1),
        # Sidekiq's own load test uses 10 threads.
        _sidekiq(left=Left(lists=("queue:bench",)), empty_concurrency=10),
        _node("bullmq", left=Left(lists=("bull:bench:wait", "bull:bench:active"))),
        _node("article", left=Left(groups=("bench",))),
        _python("bare", left=Left(streams=("bench",)), bulk=True, empty_concurrency=1, waiting_concurrency=1),
    ]


def _penstock(kind: str, *, processes: int = 1) -> Contestant:
    queue = f"penstock:{{{kind}}}"
    return _python(
        "penstock",
        name=f"penstock {kind}" + (f" x{processes}" if processes > 1 else ""),
        left=Left(lists=(f"{queue}:ready",), sorted_sets=(f"{queue}:delayed",), streams=(f"{queue}:stream",)),
        environment={"BENCH_QUEUE": kind, "BENCH_PROCESSES": str(processes)},
        # On the same host a worker finds the locks of dead workers in the data directory, and does not wait for leases.
        elsewhere={"PENSTOCK_DATA_DIR": str(BUILD / f"elsewhere-{kind}")},
        bulk=True,
    )


def _python(
    module: str,
    *,
    left: Left,
    name: str = "",
    interpreter: Path = Path(sys.executable),
    environment: Mapping[str, str] | None = None,
    bulk: bool = False,
    empty_concurrency: int = CONCURRENCY,
    waiting_concurrency: int = CONCURRENCY,
    share: int = 1,
    elsewhere: Mapping[str, str] | None = None,
) -> Contestant:
    run = (str(interpreter), "-m", "benchmarks.redis.peer", module)
    return Contestant(
        name=name or module,
        left=left,
        worker=(*run, "worker"),
        sender=(*run, "send"),
        about=(*run, "about"),
        environment=environment or {},
        bulk=bulk,
        empty_concurrency=empty_concurrency,
        waiting_concurrency=waiting_concurrency,
        share=share,
        elsewhere=elsewhere or {},
    )


def _node(script: str, *, left: Left) -> Contestant:
    run = ("node", f"dist/{script}.js")
    package = "ioredis" if script == "article" else script
    version = f"console.log('{package} ' + require('{package}/package.json').version + ' node ' + process.version)"
    return Contestant(
        name=script,
        left=left,
        worker=(*run, "worker"),
        sender=(*run, "send"),
        about=("node", "--eval", version),
        folder=NODE,
        bulk=True,
    )


def _sidekiq(*, left: Left, empty_concurrency: int) -> Contestant:
    return Contestant(
        name="sidekiq",
        left=left,
        worker=("sidekiq", "--require", "./sidekiq_peer.rb", "--queue", "bench", "--concurrency", "{concurrency}"),
        sender=("ruby", "sidekiq_peer.rb", "send"),
        about=("sidekiq", "--version"),
        folder=HERE / "ruby",
        bulk=True,
        empty_concurrency=empty_concurrency,
    )


def build_node() -> None:
    """Install and bundle the contestants on Node, below build/. Raises `NotHere` if that fails."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise NotHere(f"{tool} is not installed")
    NODE.mkdir(parents=True, exist_ok=True)
    stamp, wanted = NODE / "installed.json", (HERE / "node" / "package-lock.json").read_text()
    for source in (HERE / "node").iterdir():
        shutil.copy(source, NODE)
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        stamp.write_text(json.dumps(wanted))
    _run("npm", "run", "--silent", "build")


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise NotHere(f"`{' '.join(command)}` failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
