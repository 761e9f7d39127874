"""The demo's figures on several seeds: one fixed configuration, held-out days that nothing was tuned on.

    python bench/demo.py --seeds 0 1 2

Needs what `make demo` installs (run it with that virtual environment's python). Prints a row a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent_env.bundle import load_bundle
from agent_env.bundle.recipe import load_recipe
from agent_env.training.main_job import JobSettings, run_main_job
from agent_env.training.results import paired_difference

BUNDLE = Path(__file__).parent.parent / "bundles" / "gridsim"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="keep the runs in this folder instead of a temporary one")
    arguments = parser.parse_args()
    recipe = load_recipe(load_bundle(BUNDLE))
    table = Table(title="agent-env train bundles/gridsim: mean held-out reward ± standard error", title_justify="left")
    columns = ("untrained", "after SFT", "after RL", "after SFT, greedy", "after RL, greedy")
    for column in ("seed", *columns, "RL over SFT", "paired s.e.", "seconds", "peak MB"):
        table.add_column(column, justify="right")
    references: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for seed in arguments.seeds:
            settings = JobSettings(
                bundle=BUNDLE, runs=arguments.runs or Path(temporary), run_name=f"seed-{seed}", recipe=recipe, seed=seed
            )
            result = asyncio.run(run_main_job(settings, Console(file=sys.stderr)))
            rows = result.held_out
            gain = paired_difference(rows["after RL"], rows["after SFT"])
            table.add_row(
                str(seed),
                *(f"{rows[column].mean:.3f} ± {rows[column].standard_error:.3f}" for column in columns),
                f"{gain.mean:+.3f}",
                f"{gain.mean / gain.standard_error:.1f}",
                f"{result.seconds:.0f}",
                f"{result.peak_memory_mb:.0f}",
            )
            references = {name: row.mean for name, row in rows.items() if name.startswith("player: ")}
    console = Console(width=200)
    console.print(table)
    console.print("on the same days: " + ", ".join(f"{name[8:]} {mean:.3f}" for name, mean in references.items()))


if __name__ == "__main__":
    main()
