"""Read files of Terraform and CloudFormation. A separate module, because these parsers take seconds to import."""

import json
from pathlib import Path
from typing import Any

import hcl2
from cfnlint.decode import decode
from hcl2 import SerializationOptions


def read_hcl(path: Path) -> dict[str, Any]:
    """Return the content of a Terraform file."""
    options = SerializationOptions(strip_string_quotes=True, explicit_blocks=False, with_comments=False)
    found: dict[str, Any] = hcl2.loads(path.read_text(encoding="utf-8"), serialization_options=options)
    return found


def read_cloudformation(path: Path) -> dict[str, Any]:
    """Return the content of a CloudFormation template, with functions in their long form."""
    found, problems = decode(str(path))
    assert not problems
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain
