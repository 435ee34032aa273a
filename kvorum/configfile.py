"""etcd's --config-file: a YAML file of flag names, with the TLS settings of each side in a section of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from kvorum.layout import UsageError

_SECTIONS: Final = {"client-transport-security": "", "peer-transport-security": "peer-"}
"""Sections, and what their names have in front as flags."""
_OF_SECTION: Final = {
    "client-cert-file": "client-cert-file",
    "client-key-file": "client-key-file",
    "allowed-cn": "cert-allowed-cn",
    "allowed-hostname": "cert-allowed-hostname",
}
"""Names in a section that are not those of the flag."""


def read(path: str) -> Iterator[tuple[str, str]]:
    """Flag names and values as on a command line. Raises UsageError for a file that cannot be used."""
    try:
        document = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"--config-file: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"--config-file: {path} is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise UsageError(f"--config-file: {path} holds no settings")
    for name, value in document.items():
        if name not in _SECTIONS:
            yield str(name), _text(path, str(name), value)
        elif isinstance(value, dict):
            for part, setting in value.items():
                flag = _SECTIONS[name] + _OF_SECTION.get(part, str(part))
                yield flag, _text(path, f"{name}.{part}", setting)
        elif value is not None:
            raise UsageError(f"--config-file: {path}: {name} is no section")


def _text(path: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return ""
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(path, name, part) for part in value)
    raise UsageError(f"--config-file: {path}: {name} is a section, and should be a value")
