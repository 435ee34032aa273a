"""The hot modules as C, when asked: ``make wheel`` (docs/decisions/0005).

Everything else about the package is in pyproject.toml, and without the variable this file adds nothing: the same
modules run as Python. Compiling takes mypy (its mypyc), a C compiler and some minutes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who only reads the list of modules needs no setuptools
    from setuptools import Extension

COMPILED = {
    "raft": (
        "application codec driver framing histogram log logrows logwriter outbox proposals reads sqlite_log "
        "stable tailfile transport waiters"
    ),
    "raft/core": (
        "confchange config elections errors follower inflights leader log membership proposals quorum raft "
        "rawnode readonly reads replication roles sizes state status storage tracker types unstable"
    ),
    "store": "application apply leases lessor machine quota state validate wire writebuffer",
    "store/api": "context direct encode",
    "store/listener": "call direct http2 limits links messages metadata",
    "store/mvcc": "compactor hashkv index position record txn",  # ranges: weakly referenced
    "store/watch": "hub interest stream",
}
"""What a write passes through from the socket to its answer, here and on the members that follow."""

SOURCES = [f"{folder}/{name}.py" for folder, names in COMPILED.items() for name in names.split()]


def extensions() -> list[Extension]:
    """The extension modules: none unless they are asked for."""
    if os.environ.get("KVORUM_COMPILE", "") in ("", "0"):
        return []
    from mypyc.build import mypycify

    return mypycify(
        ["--config-file", "pyproject.toml", *SOURCES],
        opt_level=os.environ.get("KVORUM_COMPILE_OPT", "2"),
        debug_level="0",
        group_name="kvorum",
    )


if __name__ == "__main__":
    from setuptools import setup

    setup(ext_modules=extensions())
