"""The function that describes a worker's Python. It is sent by value: workers may lack Penstock and its packages."""


def reply(packages: str) -> str:
    """Return host, program, version and packages as JSON. ``packages`` is a JSON list of names."""
    import importlib
    import json
    import platform
    import socket
    import sys

    found: dict[str, str | None] = {}
    for name in json.loads(packages):
        try:
            found[name] = str(getattr(importlib.import_module(name), "__version__", "unknown"))
        except ImportError:
            found[name] = None
    values = {
        "host": socket.gethostname(),
        "program": sys.executable,
        "version": platform.python_version(),
        "packages": found,
    }
    return json.dumps(values, sort_keys=True)
