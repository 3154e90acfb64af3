"""Checks compose.yaml and the Dockerfile against the code, as far as a machine without a container engine can.

`python -m config.compose_check` prints what is wrong, one line each, and then exits 1. Nothing is contacted.
"""

from __future__ import annotations

from pathlib import Path

import yaml
from jsonschema import Draft202012Validator

from config.compose_check.dockerfile import dockerfile_problems
from config.compose_check.rules import relation_problems, service_problems
from config.compose_check.service import Service
from config.compose_check.shape import SHAPE
from config.env import BASE_DIR


def problems(folder: Path = BASE_DIR) -> list[str]:
    """What is wrong with the files in `folder`; empty when all is well. Django must be set up."""
    document = yaml.safe_load((folder / "compose.yaml").read_text())
    misshapen = [
        f"compose.yaml: {'/'.join(map(str, error.absolute_path))}: {error.message}"
        for error in Draft202012Validator(SHAPE).iter_errors(document)
    ]
    if misshapen:
        return misshapen
    services = {name: Service(name, body) for name, body in document["services"].items()}
    return [
        *(f"compose.yaml: {one.name}: {problem}" for one in services.values() for problem in service_problems(one)),
        *(f"compose.yaml: {problem}" for problem in relation_problems(services, document)),
        *(f"Dockerfile: {problem}" for problem in dockerfile_problems(folder)),
    ]
