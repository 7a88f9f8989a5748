"""Create the environment that the Makefile's targets run in, on a fresh clone or after a change of the lock.

Usage: python3 scripts/bootstrap.py [--venv .venv] [--lock dev]

Needs only Python 3.11 with its venv module, and a package index that pip can reach. It creates the virtual environment,
installs the pins of locks/<lock>.txt (every file checked against its hash, pyspark's build tools too), and this project
itself, editable. A stamp in the environment makes the second call a matter of milliseconds.
"""

# Older Pythons have to get as far as the sentence that sends them away: nothing here is newer than Python 3.7.
from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
PYTHON_MIN = (3, 11)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the environment for working on Penstock.")
    parser.add_argument("--venv", default=".venv", help="where the environment goes (default: .venv)")
    parser.add_argument("--lock", default="dev", help="which file of locks/ to install (default: dev)")
    arguments = parser.parse_args()
    if sys.version_info < PYTHON_MIN:
        sys.exit(
            f"Penstock needs Python 3.11 or newer and {sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}: "
            "name another one, as in `make test PYTHON=python3.12`."
        )
    venv = ROOT / arguments.venv
    try:
        with alone(venv):
            ensure(venv, LOCKS / (arguments.lock + ".txt"))
    except subprocess.CalledProcessError as error:
        sys.exit(f"Set-up stopped: `{' '.join(map(str, error.cmd))}` failed; what it said is above.")


@contextlib.contextmanager
def alone(venv: Path) -> Iterator[None]:
    """Keep a second set-up of one environment waiting until the first has ended."""
    with venv.with_name(venv.name + ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def ensure(venv: Path, lock: Path) -> None:
    """Install `lock` and the project into `venv`, skipping steps that are already done."""
    packages = Stamp(venv / "packages.stamp", [lock, LOCKS / "build.txt", LOCKS / "uv.txt", Path(__file__)], venv)
    project = Stamp(venv / "project.stamp", [ROOT / "pyproject.toml"], venv)
    if not packages.fresh():
        print(f"Setting up {venv.name} (once; about a minute) ...", file=sys.stderr, flush=True)
        make_environment(venv)
        install(venv, ["--require-hashes", "--build-constraints", LOCKS / "build.txt", "--requirements", lock])
        packages.write()
    if not project.fresh():
        install(venv, ["--no-deps", "--no-build-isolation", "--editable", ROOT])
        project.write()


class Stamp:
    """A file that records the inputs of a step's last run."""

    def __init__(self, path: Path, inputs: list[Path], venv: Path) -> None:
        self._path = path
        digest = hashlib.sha256(f"{venv} {sys.version}".encode())
        for each in inputs:
            digest.update(each.read_bytes())
        self._text = digest.hexdigest()

    def fresh(self) -> bool:
        return self._path.exists() and self._path.read_text() == self._text

    def write(self) -> None:
        self._path.write_text(self._text)


def make_environment(venv: Path) -> None:
    """Create an empty environment, so that no packages of an older lock remain."""
    shutil.rmtree(venv, ignore_errors=True)
    made = subprocess.run(
        [sys.executable, "-m", "venv", venv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if made.returncode != 0:
        shutil.rmtree(venv, ignore_errors=True)
        sys.exit(
            f"{sys.executable} cannot make a virtual environment (its venv or ensurepip module is missing or broken): "
            "install it (Debian and Ubuntu: apt-get install python3-venv) or name another Python, as in "
            "`make test PYTHON=python3.12`."
        )


def install(venv: Path, arguments: list[str | Path]) -> None:
    """Run `uv pip install` on the environment."""
    command = [find_uv(venv), "pip", "install", "--quiet", "--python", venv / "bin" / "python", *arguments]
    subprocess.run([str(part) for part in command], cwd=str(ROOT), env=environment_for_uv(venv), check=True)


def find_uv(venv: Path) -> str:
    """Return the uv on PATH if it runs, else the pinned one, which pip installs into the environment."""
    beside = venv / "bin" / "uv"
    if beside.exists():
        return str(beside)
    on_path = shutil.which("uv")
    if on_path and subprocess.run([on_path, "--version"], stdout=subprocess.DEVNULL, check=False).returncode == 0:
        return on_path
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--require-hashes", "-r", str(LOCKS / "uv.txt")], check=True)
    return str(beside)


def environment_for_uv(venv: Path) -> dict[str, str]:
    """Return this process's environment, with the index that pip is configured for, for uv.

    pip reads configuration files that uv does not know. A machine behind a mirror can reach no other index. The hashes
    ensure that any index delivers the same files.
    """
    environment = dict(os.environ)
    for setting, variable in (("index-url", "UV_DEFAULT_INDEX"), ("cert", "SSL_CERT_FILE")):
        configured = pip_setting(venv, setting)
        if configured and variable not in environment:
            environment[variable] = configured
    return environment


def pip_setting(venv: Path, name: str) -> str | None:
    """Return pip's option `name` from its environment variables or its configuration files."""
    from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if from_environment:
        return from_environment
    asked = subprocess.run(
        [str(venv / "bin" / "python"), "-m", "pip", "config", "get", "global." + name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or None


if __name__ == "__main__":
    main()
