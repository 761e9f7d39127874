"""What `import agent_env` costs a new process, beside the bound of 300 ms. Prints a table.

python bench/importing.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys

RUNS = 15
BOUND_MS = 300
CODE = "import time; began = time.perf_counter(); {}; print((time.perf_counter() - began) * 1e3)"
STATEMENTS = {
    "import agent_env": "import agent_env",
    "and every public name": "from agent_env import *",
    "and the command line": "import agent_env.cli",
}


def measured(statement: str) -> list[float]:
    """Milliseconds in each of `RUNS` new processes, warm."""
    command = [sys.executable, "-c", CODE.format(statement)]
    return sorted(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(RUNS))


def main() -> None:
    print(f"{'':<24}{'median':>10}{'slowest':>10}{'bound':>10}")
    for name, statement in STATEMENTS.items():
        times = measured(statement)
        bound = f"{BOUND_MS:>7} ms" if statement == "import agent_env" else ""
        print(f"{name:<24}{statistics.median(times):>7.0f} ms{times[-1]:>7.0f} ms{bound}")


if __name__ == "__main__":
    main()
