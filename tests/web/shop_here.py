"""The shop in the current directory, for `penstock web tests.web.shop_here:app`."""

from pathlib import Path

from tests.web.shop import shop

app = shop(Path.cwd())
