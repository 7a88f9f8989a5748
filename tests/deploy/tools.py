"""Run the programs that check the files of deploy/."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
STARTER = ROOT / "src/penstock/cli/starter/aws"  # the Terraform of `penstock init --aws`
SECONDS_MAX = 120.0
TERRAFORM_SECONDS = 200.0  # AWS's provider is slow to start


def run(program: str, *arguments: str | Path, folder: Path = ROOT, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of the development packages or of this machine. If it is missing, skip the test; in CI, fail."""
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return subprocess.run(
        [found, *map(str, arguments)],
        cwd=folder,
        input=stdin,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def terraform(folder: Path, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run terraform in that folder, without its check for updates. Skip the test if it is missing."""
    if shutil.which("terraform") is None:
        pytest.skip("not applicable: terraform is not installed, and the files are checked without it")
    return subprocess.run(
        ["terraform", f"-chdir={folder}", *map(str, arguments)],
        input=stdin,
        env={**os.environ, "CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=TERRAFORM_SECONDS,
        check=False,
    )
