"""Pack what executors need into an archive for Spark's ``--archives``.

`pack` finds the packages and their dependencies in this environment, in their exact versions, and writes them as
``lib/`` beside a small ``bin/python``. For another platform or Python, pip gets the same versions as wheels. Penstock
itself is not in the archive: it is shipped with each session (`penstock.pipeline.spark.shipping`).
"""

import gzip
import io
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory

from penstock.errors import ConfigurationError, UsageError
from penstock.pipeline.spark.requirements import FOR_LEDGER, FOR_S3, REQUIRED

ALIAS = "penstock"  # the folder of the unpacked archive, in the working directory of an executor
OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SUFFIXES = (".tar.gz", ".tgz")  # that Spark unpacks
PYTHON_VARIABLE = "SPARK_PACK_PYTHON"

_DISTRIBUTIONS = {"ulid": "python-ulid"}  # by import, if the names differ
_LEDGER = tuple(_DISTRIBUTIONS.get(name, name) for name in FOR_LEDGER)
PACKAGES: Mapping[str, Sequence[str]] = {
    "pipeline": (*REQUIRED, "pandas"),
    "aws": tuple(FOR_S3),
    "mysql": ("cryptography", "pymysql", *_LEDGER),
    "postgresql": ("psycopg", "psycopg-binary", *_LEDGER),
}
"""The distributions that tasks import, by pip extra. PySpark is on every host, and only the driver uses deltalake."""

_LEVEL = 6  # of gzip
_TEXT_CHARS_MAX = 300
_LEFT_OUT = frozenset({"INSTALLER", "REQUESTED", "direct_url.json"})  # in .dist-info: about this environment alone
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"3\.\d{1,2}")
_MANYLINUX = re.compile(r"manylinux(?:_2_(?P<glibc>\d+)|(?P<legacy>1|2010|2014))_(?P<machine>\w+)")
_LEGACY = {"2014": 17, "2010": 12, "1": 5}  # glibc 2.x of the old names, in which many wheels are named

_SCRIPT = """\
#!/bin/sh
# Runs this host's Python {version} with the packages in ../lib. To use another program, set {variable}.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd) || exit 127
PYTHONPATH="$here/../lib${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
if [ -n "${{{variable}:-}}" ]; then
    exec "${variable}" "$@"
fi
for python in python{version} python3 python; do
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({numbers}))' 2>/dev/null; then
        exec "$python" "$@"
    fi
done
echo "penstock: this host has no Python {version} on its PATH; set spark.executorEnv.{variable} to its program" >&2
exit 127
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRequest:
    """The options of `penstock admin spark pack`."""

    output: Path | None = None  # None: in the current folder, named by the version of Python
    extras: Sequence[str] = ()  # besides `pipeline`
    packages: Sequence[str] = ()  # distributions that transforms import
    platforms: Sequence[str] = ()  # as pip names them; none: this one
    python_version: str | None = None  # None: this one

    @property
    def python(self) -> str:
        return self.python_version or OWN_PYTHON

    @property
    def is_for_here(self) -> bool:
        """Return True if this environment's own files are packed."""
        return not self.platforms and self.python == OWN_PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """A written archive, and the Spark settings that use it."""

    file: str
    bytes: int
    python: str
    packages: Mapping[str, str]  # versions by name
    settings: Mapping[str, str] = field(default_factory=dict)


def pack(request: PackRequest) -> PackReport:
    """Write the archive. The same environment gives the same bytes.

    Raises `UsageError` for invalid options and `ConfigurationError` for packages that are missing or cannot be packed,
    and for a folder that cannot be written.
    """
    output = _checked_output(request)
    found = distributions([*_roots(request), *request.packages])
    with _draft_of(output) as draft:
        if request.is_for_here:
            _write(draft, request.python, _installed_files(found.values()))
        else:
            with TemporaryDirectory(prefix="penstock-pack-") as folder:
                _download(Path(folder), request, found.values())
                _write(draft, request.python, _files_in(Path(folder)))
        draft.replace(output)
    return PackReport(
        file=str(output),
        bytes=output.stat().st_size,
        python=request.python,
        packages={name: one.version for name, one in sorted(found.items())},
        settings={"spark.archives": f"{output}#{ALIAS}", "spark.pyspark.python": f"./{ALIAS}/bin/python"},
    )


def distributions(names: Sequence[str]) -> Mapping[str, Distribution]:
    """Return the installed distributions of these names with their dependencies, by normalised name.

    A dependency with a condition is left out if it is not installed. Raises `ConfigurationError` for others.
    """
    found: dict[str, Distribution] = {}
    waiting = [(name, "") for name in names]
    while waiting:
        name, needed_by = waiting.pop()
        key = _normalised(name)
        if key in found or key == "pyspark":
            continue
        try:
            found[key] = distribution(name)
        except PackageNotFoundError as error:
            reason = f"{needed_by} needs it" if needed_by else "the archive needs it"
            raise ConfigurationError(
                f"The package {name} is not installed here, and {reason}: install it into the environment of Penstock "
                f"({sys.executable}) and run this again."
            ) from error
        waiting += [(one, name) for one in _requirements(found[key])]
    return found


def _requirements(one: Distribution) -> Iterator[str]:
    for text in one.requires or ():
        requirement, _, condition = text.partition(";")
        match = _NAME.match(requirement.strip())
        if match is None or "extra" in condition:
            continue
        if condition and not _is_installed(match.group()):
            continue
        yield match.group()


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _checked_output(request: PackRequest) -> Path:
    """Return the absolute path of the archive. Raises `UsageError` for invalid options."""
    unknown = [extra for extra in request.extras if extra not in PACKAGES]
    if unknown:
        raise UsageError(f"--extra {unknown[0]} has nothing for executors; the extras are {', '.join(PACKAGES)}.")
    for option, values in (("--package", request.packages), ("--platform", request.platforms)):
        invalid = [value for value in values if _NAME.fullmatch(value) is None]
        if invalid:
            raise UsageError(f"{option} {invalid[0]!r} must be the name of one {option.removeprefix('--')}.")
    if _VERSION.fullmatch(request.python) is None:
        raise UsageError(f"--python-version {request.python} must be a version such as {OWN_PYTHON}.")
    output = (request.output or Path(f"penstock-python{request.python}.tar.gz")).absolute()
    if not output.name.endswith(SUFFIXES):
        raise UsageError(f"--output {output} must end with {' or '.join(SUFFIXES)}: Spark unpacks it by its name.")
    if set("#,") & set(str(output)):
        raise UsageError(
            f"--output {output} must have no comma and no # in its path: they are separators in spark.archives."
        )
    if not output.parent.is_dir() or output.is_dir():
        raise UsageError(f"--output {output} must be a file in a folder that exists.")
    return output


def _roots(request: PackRequest) -> Sequence[str]:
    return [name for extra in ("pipeline", *request.extras) for name in PACKAGES[extra]]


@contextmanager
def _draft_of(output: Path) -> Iterator[Path]:
    """Yield the path of a draft beside the output, which exists. It is deleted if it is still there after the block."""
    draft = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        draft.touch()
    except OSError as error:
        raise ConfigurationError(f"The archive {output} cannot be written: {error.strerror or error}.") from error
    try:
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _installed_files(found: Iterable[Distribution]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file that pip installed for these distributions."""
    for one in found:
        files = [file for file in one.files or () if _is_wanted(file)]
        if not any(file.suffix in (".py", ".so") for file in files):
            raise ConfigurationError(
                f"The files of {one.name} {one.version} are not in this environment, as with an editable install: "
                "install it as a wheel and run this again."
            )
        for file in files:
            yield file.as_posix(), Path(str(one.locate_file(file)))


def _is_wanted(file: PurePath) -> bool:
    """Return False for programs, byte code, editable installs, and files about the environment."""
    is_inside = not file.is_absolute() and ".." not in file.parts and "__pycache__" not in file.parts
    return (
        is_inside
        and file.suffix not in (".pth", ".pyc")
        and not (file.name in _LEFT_OUT and file.parent.suffix == ".dist-info")
        and not file.name.startswith(("__editable__", "_editable_impl"))
    )


def _download(folder: Path, request: PackRequest, found: Iterable[Distribution]) -> None:
    """Let pip install the same versions for another platform. Raises `ConfigurationError` with pip's reason."""
    if find_spec("pip") is None:
        raise ConfigurationError(
            f"pip gets the packages for another platform, and it is not installed for {sys.executable}: run "
            f"{sys.executable} -m ensurepip, or run this command on a host like those of the cluster."
        )
    tags = dict.fromkeys(tag for platform in request.platforms for tag in _tags(platform))
    platforms = [text for tag in tags for text in ("--platform", tag)]
    command = [
        *(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-compile",
        ),
        *("--only-binary", ":all:", "--implementation", "cp", "--python-version", request.python, *platforms),
        *("--target", str(folder), *sorted(f"{one.name}=={one.version}" for one in found)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or ["pip failed"]
        reason = errors[-1].removeprefix("ERROR: ")[:_TEXT_CHARS_MAX].rstrip(".")
        where = ", ".join(request.platforms) or "this platform"
        raise ConfigurationError(f"pip cannot get the packages for Python {request.python} on {where}: {reason}.")


def _tags(platform: str) -> Iterator[str]:
    """Yield the tags of wheels that run on a platform: pip takes only the named one, not those for older systems."""
    yield platform
    found = _MANYLINUX.fullmatch(platform)
    if found is None:
        return
    newest = int(found["glibc"] or _LEGACY[found["legacy"]])
    for glibc in range(newest, min(_LEGACY.values()) - 1, -1):
        yield f"manylinux_2_{glibc}_{found['machine']}"
        yield from (f"manylinux{name}_{found['machine']}" for name, older in _LEGACY.items() if older == glibc)


def _files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if path.is_file() and inside.parts[0] != "bin" and _is_wanted(inside):
            yield inside.as_posix(), path


def _write(draft: Path, python: str, files: Iterable[tuple[str, Path]]) -> None:
    """Write the archive: sorted names, no owners, no times."""
    script = _SCRIPT.format(version=python, numbers=python.replace(".", ", "), variable=PYTHON_VARIABLE)
    with (
        draft.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=_LEVEL, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        content = script.encode()
        archive.addfile(_entry("bin/python", size=len(content), mode=0o755), io.BytesIO(content))
        for name, path in sorted(dict(files).items()):
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                archive.addfile(_entry(f"lib/{name}", size=status.st_size, mode=mode), file)


def _entry(name: str, *, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    return entry
