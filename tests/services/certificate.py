"""A new self-signed certificate for the loopback address, in a test's folder."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate. ``path`` is also the CA file for clients."""

    path: Path
    key_path: Path


def make_certificate(folder: Path) -> Certificate:
    made = Certificate(path=folder / "certificate.pem", key_path=folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-out", str(made.path), "-keyout", str(made.key_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return made
