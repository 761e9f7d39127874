"""Make the shop's database and its tasks from seeds: the same bytes each time, on every machine.

    python generate.py                       # write universes/ and tasks/ beside this script
    python generate.py --folder DIR          # write them elsewhere

The database is `making/database.py`, out of `making/catalogue.py` and `making/people.py`; what is asked is in
`making/kinds_*.py`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from making.database import make_database
from making.talks import talk
from making.tasks import SPLITS, make_cases, one_turn

BUNDLE = Path(__file__).resolve().parent


def write_lines(path: Path, lines: list[Any]) -> None:
    """Write JSON values, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(line) + "\n" for line in lines).encode())


def main() -> None:
    """Write the database and the tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=BUNDLE, help="where universes/ and tasks/ are")
    options = parser.parse_args()
    database = make_database()
    path = options.folder / "universes" / "store.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((json.dumps(database, separators=(",", ":")) + "\n").encode())
    for split in SPLITS:
        made = list(make_cases(database, split))
        write_lines(options.folder / "tasks" / f"{split}.jsonl", [one_turn(each) for each in made])
        firsts = [each for each in made if each.number == 1]
        write_lines(options.folder / "tasks" / f"talk-{split}.jsonl", [talk(each) for each in firsts])


if __name__ == "__main__":
    main()
