"""Rewrite the hashed lock files in locks/ from pyproject.toml and the .in files beside them.

Usage: python scripts/lock.py [--upgrade]

Without --upgrade, pins change only if they no longer fit. No file names an index or a path: each machine uses its own
index, and the hashes fix the files.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPILE = [
    "pip",
    "compile",
    "--universal",
    "--generate-hashes",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--python-version=3.11",
    "--quiet",
]
# The requirements of images, with the pins of dev.txt and without development tools.
IMAGE = [
    "pyproject.toml",
    "--constraint=locks/dev.txt",
    *(
        f"--extra={name}"
        for name in (
            "apprise",
            "aws",
            "msgspec",
            "mysql",
            "otel",
            "postgresql",
            "redis",
            "rollbar",
            "sentry",
            "uvloop",
            "web",
        )
    ),
]
LOCKS = {
    "uv": ["locks/uv.in"],
    "build": ["locks/build.in"],
    "release": ["locks/release.in"],
    "dev": [
        "pyproject.toml",
        "--all-extras",
        "--group=dev",
    ],
    "image": IMAGE,
    "image-spark": [*IMAGE, "--extra=iceberg", "--extra=spark", "--extra=java"],
    "docs": ["locks/docs.in"],
    "local-aws": ["locks/local-aws.in", "--constraint=locks/dev.txt"],
    "spark40": [
        "pyproject.toml",
        "locks/spark40.in",
        "--all-extras",
        "--group=dev",
    ],
    "bench": [
        "pyproject.toml",
        "--all-extras",
        "--group=dev",
        "--group=bench",
    ],
    "bench-older": ["locks/bench-older.in"],
}


def main() -> None:
    uv = find_uv()
    for name, sources in LOCKS.items():
        print(f"locks/{name}.txt")
        subprocess.run(
            [uv, *COMPILE, *sys.argv[1:], *sources, "--output-file", f"locks/{name}.txt"], cwd=ROOT, check=True
        )
        refuse_addresses(ROOT / "locks" / f"{name}.txt")


def find_uv() -> str:
    """Return the uv of the environment that this script runs in, else the one on PATH."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        sys.exit("scripts/lock.py needs uv: run `make lock`, or put uv on PATH.")
    return found


def refuse_addresses(lock: Path) -> None:
    """Exit if the lock names an index."""
    for number, line in enumerate(lock.read_text().splitlines(), 1):
        if "://" in line or line.startswith("-") or " @ " in line:
            sys.exit(f"{lock.name}:{number} names a place to fetch from, and a lock must not: {line.strip()}")


if __name__ == "__main__":
    main()
