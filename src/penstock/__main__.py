"""`python -m penstock` is `penstock`; so is this file, given to `spark-submit`. `penstock --script` prints its path."""

import sys
from pathlib import Path

if not __package__:
    # Run as a file, its folder is the first on Python's path, and `import app` would find Penstock's package of that
    # name instead of the user's module.
    own_folder = Path(__file__).resolve().parent
    sys.path[:] = [folder for folder in sys.path if not folder or Path(folder).resolve() != own_folder]

from penstock.cli.main import main

main()
