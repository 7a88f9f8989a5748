"""Install the npm package fauxqs, in the locked versions, below the build folder."""

import fcntl
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).with_name("fauxqs")
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fauxqs"
INSTALL_SECONDS_MAX = 240
INSTALL = ("npm", "ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund")


def why_not_here() -> str | None:
    """Install fauxqs if necessary. Return a sentence with the missing program, or None if fauxqs is installed."""
    if shutil.which("node") is None:
        return "node is missing, which fauxqs runs on: install Node 20 or newer, with npm"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes that run side by side install it once
        return _install()


def _install() -> str | None:
    wanted, stamp = (HERE / "package-lock.json").read_text(), FOLDER / "installed.json"
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    if shutil.which("npm") is None:
        return "npm is missing, which installs fauxqs"
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, FOLDER)
    done = subprocess.run(INSTALL, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return f"`{' '.join(INSTALL)}` failed for fauxqs: {lines[-1] if lines else done.returncode}"
    stamp.write_text(wanted)
    return None
