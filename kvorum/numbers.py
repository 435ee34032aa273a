"""Numbers on a command line: one that does not fit is told in one line, with what is allowed."""

from __future__ import annotations

import argparse
import math


def whole(text: str, kind: str, least: int = 0, most: float = math.inf) -> int:
    """``text`` as a decimal number from ``least`` to ``most``. Raises ArgumentTypeError: it is not ``kind``."""
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")
    return int(text)


def real(text: str, kind: str, *, positive: bool = True, below: float = math.inf) -> float:
    """``text`` as a finite number below ``below``, above zero or (unless ``positive``) zero. Raises like whole."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < below or (value == 0 and not positive)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")
    return value
