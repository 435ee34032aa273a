"""Points in time as objects carry them: UTC, whole seconds, RFC 3339."""

from __future__ import annotations

import datetime


def now_rfc3339() -> str:
    return after_rfc3339(0)


def after_rfc3339(seconds: int) -> str:
    """The moment ``seconds`` from now."""
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
