"""The shape of what is used of the compose specification, and no more: a misspelt key is not silently ignored."""

from __future__ import annotations

from typing import Any

_TEXTS = {"type": "array", "items": {"type": "string"}}
_DURATION = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$", "minLength": 2}
_NAMED = {"type": "object", "additionalProperties": {"type": "object"}}
_SERVICE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["image", "networks", "restart", "logging", "environment"],
    "properties": {
        "image": {"type": "string"},
        "pull_policy": {"enum": ["never"]},
        "build": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"context": {"const": "."}, "args": {"type": "object"}},
        },
        "init": {"type": "boolean"},
        "read_only": {"type": "boolean"},
        "user": {"type": "string"},
        "hostname": {"type": "string"},
        "profiles": _TEXTS,
        "cap_drop": _TEXTS,
        "security_opt": _TEXTS,
        "tmpfs": _TEXTS,
        "networks": _TEXTS,
        "ports": _TEXTS,
        "restart": {"enum": ["no", "unless-stopped"]},
        "logging": {"type": "object", "required": ["driver"]},
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "command": _TEXTS,
        "volumes": {"type": "array", "items": {"type": ["string", "object"]}},
        "shm_size": {"type": "string"},
        "stop_grace_period": _DURATION,
        "depends_on": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["condition"],
                "properties": {"condition": {"enum": ["service_healthy", "service_completed_successfully"]}},
            },
        },
        "healthcheck": {
            "type": "object",
            "additionalProperties": False,
            "required": ["test", "interval", "timeout", "retries"],
            "properties": {
                "test": _TEXTS,
                "interval": _DURATION,
                "timeout": _DURATION,
                "start_period": _DURATION,
                "retries": {"type": "integer"},
            },
        },
        "deploy": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "resources": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "limits": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["cpus", "memory"],
                            "properties": {
                                "cpus": {"type": "string"},
                                "memory": {"type": "string", "pattern": "^[0-9]+[mg]$"},
                                "pids": {"type": "integer"},
                            },
                        }
                    },
                }
            },
        },
    },
}
SHAPE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "patternProperties": {"^x-": True},
    "required": ["name", "services", "networks", "volumes"],
    "properties": {
        "name": {"type": "string"},
        "services": {"type": "object", "additionalProperties": _SERVICE},
        "networks": _NAMED,
        "volumes": _NAMED,
    },
}
