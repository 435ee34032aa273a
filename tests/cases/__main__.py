"""``python -m tests.cases [FILE]``: all cases, each on a fresh member, then those that may on a follower."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.cases.runner import FOLDER, case_ids, on_follower, on_fresh_members, selected


def main(arguments: list[str]) -> int:
    file = Path(arguments[0]) if arguments else FOLDER / "etcd_cases.jsonl"
    code = 0
    with tempfile.TemporaryDirectory(prefix="kvorum-cases-") as folder:
        cases = selected(Path(folder), case_ids(file), file)
        for where, run in (("one fresh member a case", on_fresh_members), ("a follower of three", on_follower)):
            print(f"{where}:", flush=True)
            done = run(Path(folder), cases)
            print(done.stdout + done.stderr, flush=True)
            code = code or done.returncode
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
