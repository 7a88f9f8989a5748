"""Copy the dashboard's scripts and styles from their npm packages into the package, with their licences.

Usage: python -m scripts.web_assets [--check]

The versions are those of scripts/web/package-lock.json, whose hashes npm checks. The copies are committed, so that no
installation and no build needs npm. manifest.json beside them has the version and the SHA-384 of each file.
--check writes nothing, and exits with 1 if the committed files differ from the packages.
"""

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = Path(__file__).with_name("web")  # package.json, the lock and npm's settings
VENDOR = ROOT / "src" / "penstock" / "web" / "static" / "vendor"
MANIFEST = "manifest.json"
INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
INSTALL_SECONDS_MAX = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """The files that the dashboard serves of one npm package. `files` maps a path in the package to our name."""

    package: str
    licence: str  # SPDX; htmx-ext-sse names none in its package.json
    files: Mapping[str, str]

    @property
    def copies(self) -> Mapping[str, str]:
        return {**self.files, "LICENSE": f"{self.package}.LICENSE"}


ASSETS: Sequence[Asset] = (
    Asset(package="htmx.org", licence="0BSD", files={"dist/htmx.min.js": "htmx.min.js"}),
    Asset(package="htmx-ext-sse", licence="0BSD", files={"dist/sse.min.js": "htmx-ext-sse.min.js"}),
    # Idiomorph together with its extension for htmx
    Asset(package="idiomorph", licence="0BSD", files={"dist/idiomorph-ext.min.js": "idiomorph-ext.min.js"}),
    Asset(
        package="uplot",
        licence="MIT",
        files={"dist/uPlot.iife.min.js": "uPlot.min.js", "dist/uPlot.min.css": "uPlot.min.css"},
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy the dashboard's scripts and styles from their npm packages.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a committed file differs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-web-assets-") as folder:
        wanted = packed(install(Path(folder)))
    if arguments.check:
        differing = sorted(differences(wanted, VENDOR))
        print("\n".join(differing) or f"{len(wanted)} files are those of the packages")
        sys.exit(1 if differing else 0)
    write(wanted, VENDOR)
    print(f"wrote {len(wanted)} files to {VENDOR.relative_to(ROOT)}")


def install(folder: Path) -> Path:
    """Install the locked packages below `folder`, and return their folder. Exit with npm's message if npm fails."""
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(PACKAGES / name, folder)
    if shutil.which("npm") is None:
        sys.exit("npm is missing: install Node 20 or newer, with npm")
    done = subprocess.run(INSTALL, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(INSTALL)}` failed:\n{done.stderr.strip()}")
    return folder / "node_modules"


def packed(modules: Path) -> Mapping[str, bytes]:
    """Return the content of each file of the vendor folder by its name, from installed packages."""
    files = {
        name: (modules / asset.package / path).read_bytes() for asset in ASSETS for path, name in asset.copies.items()
    }
    described = [_described(asset, modules, files) for asset in ASSETS]
    return {**files, MANIFEST: (json.dumps(described, indent=2) + "\n").encode()}


def differences(wanted: Mapping[str, bytes], folder: Path) -> Iterator[str]:
    """Yield a line for each file of `folder` that is missing, unknown or has other content."""
    found = {path.name: path for path in folder.iterdir()} if folder.exists() else {}
    yield from (f"{name} is missing" for name in wanted.keys() - found.keys())
    yield from (f"{name} is in no package" for name in found.keys() - wanted.keys())
    both = wanted.keys() & found.keys()
    yield from (f"{name} differs from its package" for name in both if found[name].read_bytes() != wanted[name])


def write(wanted: Mapping[str, bytes], folder: Path) -> None:
    """Replace the files of `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in wanted.items():
        (folder / name).write_bytes(content)


def digest(content: bytes) -> str:
    """Return the SHA-384 in the form of the HTML attribute `integrity`."""
    return f"sha384-{base64.b64encode(hashlib.sha384(content).digest()).decode()}"


def _described(asset: Asset, modules: Path, files: Mapping[str, bytes]) -> Mapping[str, object]:
    return {
        "name": asset.package,
        "version": json.loads((modules / asset.package / "package.json").read_text())["version"],
        "licence": asset.licence,
        "files": {name: digest(files[name]) for name in asset.copies.values()},
    }


if __name__ == "__main__":
    main()
