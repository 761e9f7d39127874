"""What a private copy of a universe costs: time and memory, of JSON and of SQLite, against a full copy.

    python bench/universes.py [--json FILE]

Memory is what the process has for itself alone (`Private_Dirty` of /proc/self/smaps_rollup, after what is free was given
back): a page that copies share is not in it. Each figure of memory is that of many copies at once, divided by their number;
each time is a median. JSON and SQLite have a fresh process each. The JSON is a shop that is generated here, of 50 products,
500 users and 1,000 orders.
"""

from __future__ import annotations

import argparse
import asyncio
import copy as copying
import ctypes
import gc
import json
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.universe import PrivateCopy, compare, open_universe

Row = tuple[str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, help="a JSON universe with orders and users, in place of the generated one"
    )
    parser.add_argument("--copies", type=int, default=1000, help="at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shop = arguments.json or write_shop(Path(folder) / "shop.json")
        print_table("JSON", shop, in_own_process(json_rows, shop, arguments.copies))
        database = write_database(Path(folder) / "shop.db")
        print_table("SQLite", database, in_own_process(database_rows, database, 100))


def print_table(name: str, path: Path, rows: list[Row]) -> None:
    table = Table(title=f"{name}, {path.stat().st_size / 1e6:.1f} MB", title_justify="left")
    for column in ("", "measured", "promised"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def in_own_process(measure: Callable[[Path, int], list[Row]], path: Path, copies: int) -> list[Row]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, path, copies).result()


def json_rows(path: Path, copies: int) -> list[Row]:
    return asyncio.run(measure_json(path, copies)) + full_copies_of_json(path)


def database_rows(path: Path, copies: int) -> list[Row]:
    return asyncio.run(measure_database(path, copies)) + full_copies_of_database(path)


def write_shop(path: Path) -> Path:
    """Write a shop's database as JSON, about 3 MB."""
    chance = random.Random(1)

    def address() -> dict[str, str]:
        return {
            "address1": f"{chance.randrange(1000)} {chance.choice(STREETS)}",
            "address2": f"Suite {chance.randrange(1000)}",
            "city": chance.choice(CITIES),
            "country": "USA",
            "zip": f"{chance.randrange(10**5):05}",
        }

    products = {
        f"{10**9 + at}": {
            "name": f"Product {at}",
            "variants": {
                f"{2 * 10**9 + at * 100 + one}": {
                    "options": {"colour": chance.choice(COLOURS), "size": str(one)},
                    "available": chance.random() < 0.8,
                    "price": round(chance.uniform(10, 900), 2),
                }
                for one in range(12)
            },
        }
        for at in range(50)
    }
    users = {
        f"user_{at}": {
            "name": {"first_name": f"First{at % 90}", "last_name": f"Last{at % 70}"},
            "address": address(),
            "email": f"user{at}@example.com",
            "payment_methods": {f"card_{at}": {"source": "card", "brand": "visa", "last_four": f"{at:04}"}},
            "orders": [f"#W{one}" for one in range(at * 2, at * 2 + 2)],
        }
        for at in range(500)
    }
    orders = {
        f"#W{at}": {
            "order_id": f"#W{at}",
            "user_id": f"user_{at // 2}",
            "address": address(),
            "items": [
                {
                    "name": f"Product {one}",
                    "product_id": f"{10**9 + one}",
                    "item_id": f"{2 * 10**9 + one * 100}",
                    "price": round(chance.uniform(10, 900), 2),
                    "options": {
                        "colour": chance.choice(COLOURS),
                        "material": "steel",
                        "size": "large",
                        "finish": "matt",
                    },
                }
                for one in chance.sample(range(50), chance.randrange(3, 11))
            ],
            "status": chance.choice(["pending", "delivered", "processed"]),
            "payment_history": [{"type": "payment", "amount": round(chance.uniform(10, 3000), 2), "method": "card"}],
            "notes": "A parcel that was left with the neighbours. " * 18,
        }
        for at in range(1000)
    }
    path.write_text(json.dumps({"products": products, "users": users, "orders": orders}, indent=1))
    return path


STREETS = ("Elm Street", "Oak Avenue", "Main Street", "Park Road")
CITIES = ("Boston", "Denver", "Austin", "Seattle", "Chicago")
COLOURS = ("red", "blue", "black", "white", "green")


def write_database(path: Path) -> Path:
    """Write a database of about 50 MB: two tables with half a million rows in all, and an index."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, user TEXT, note TEXT, amount REAL)")
        connection.execute("CREATE TABLE items (id TEXT PRIMARY KEY, order_id INTEGER, name TEXT)")
        orders = ((at, f"user_{at % 5000}", f"{'note ' * 12}{at}", at * 1.5) for at in range(300_000))
        items = ((f"item-{at * 7919 % 1_000_003}", at % 300_000, f"name of item {at}") for at in range(260_000))
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", items)
        connection.execute("CREATE INDEX of_order ON items (order_id)")
        connection.commit()
    return path


async def measure_json(path: Path, copies: int) -> list[Row]:
    spec = UniverseSpec(path=path, kind=UniverseKind.JSON)
    rows: list[Row] = [
        ("read once per process", ms(await median(lambda: opened(spec), 1)), ""),
        ("a private copy, open and close", ms(await median(lambda: opened(spec), 500)), "2 ms"),
    ]
    async with AsyncExitStack() as stack:
        before = private_bytes()
        all_of = [await stack.enter_async_context(open_universe(spec)) for _ in range(copies)]
        keys = list(all_of.pop().state["orders"])
        rows.append((f"a copy, untouched ({copies:,} at once)", kb((private_bytes() - before) / copies), "300 kB"))
        for copy in all_of:
            assert copy.state["orders"].keys()
            assert copy.state["users"].keys()
        rows.append(("  its tables opened", kb((private_bytes() - before) / copies), "300 kB"))
        for at, copy in enumerate(all_of):
            for one in range(12):
                copy.state["orders"][keys[(at * 12 + one) % len(keys)]]["status"] = "changed"
        rows.append(("  a dozen records written to", kb((private_bytes() - before) / copies), ""))
        rows.append((f"  {copies:,} of these in all", mb(private_bytes() - before), "1,000 MB"))
        rows += await differences(all_of[0], all_of[1])
        rest = iter(all_of)
        rows.append(("looking at all users for the first time", ms(await median(lambda: scanned(next(rest)), 100)), ""))
        for copy in rest:
            await scanned(copy)
        rows.append((f"  {copies:,} that have done so, in all", mb(private_bytes() - before), "1,000 MB"))
    return rows


def full_copies_of_json(path: Path) -> list[Row]:
    value = json.loads(path.read_text())
    before = private_bytes()
    kept = [copying.deepcopy(value) for _ in range(10)]
    size = (private_bytes() - before) / len(kept)
    return [
        ("a full copy, by copy.deepcopy", ms(timed(lambda: copying.deepcopy(value), 3)), ""),
        ("  what that takes", kb(size), ""),
    ]


async def scanned(copy: PrivateCopy) -> None:
    for user in copy.state["users"].values():
        assert user


async def differences(one: PrivateCopy, two: PrivateCopy) -> list[Row]:
    return [
        ("telling what is changed", ms(await median(one.changes, 20)), ""),
        ("comparing two copies", ms(await median(lambda: compare(one, two), 20)), ""),
    ]


async def measure_database(path: Path, copies: int) -> list[Row]:
    spec = UniverseSpec(path=path, kind=UniverseKind.SQLITE)
    rows: list[Row] = [
        ("read once per process", ms(await median(lambda: opened(spec), 1)), ""),
        ("a private copy, open and close", ms(await median(lambda: opened(spec), 200)), "5 ms"),
    ]
    async with AsyncExitStack() as stack:
        before = private_bytes()
        all_of = [await stack.enter_async_context(open_universe(spec)) for _ in range(copies)]
        rows.append((f"a copy, untouched ({copies} at once)", kb((private_bytes() - before) / copies), "1,000 kB"))
        for copy in all_of:
            copy.state.execute("SELECT count(*), sum(amount) FROM orders").fetchone()
        rows.append(("  a table of it read through", kb((private_bytes() - before) / copies), "1,000 kB"))
        for copy in all_of:
            for at in range(12):
                copy.state.execute("UPDATE orders SET note = 'changed' WHERE id = ?", (at * 20_000,))
            copy.state.commit()
        rows.append(("  a dozen rows written to", kb((private_bytes() - before) / copies), ""))
        rows += await differences(all_of[0], all_of[1])
        all_of[2].state.execute("UPDATE orders SET note = 'not committed' WHERE id = 7")
        rows.append(("  while a transaction is open", ms(await median(all_of[2].changes, 5)), ""))
    return rows


def full_copies_of_database(path: Path) -> list[Row]:
    image = path.read_bytes()
    before = private_bytes()
    kept = [deserialized(image) for _ in range(3)]
    size = (private_bytes() - before) / len(kept)
    for connection in kept:
        connection.close()
    return [
        ("a full copy, by deserialize", ms(timed(lambda: deserialized(image).close(), 5)), ""),
        ("  what that takes", kb(size), ""),
    ]


def deserialized(image: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.deserialize(image)
    return connection


async def opened(spec: UniverseSpec) -> None:
    async with open_universe(spec) as copy:
        if isinstance(copy.state, sqlite3.Connection):
            copy.state.execute("SELECT count(*) FROM sqlite_master").fetchone()


async def median(act: Callable[[], Awaitable[Any]], times: int) -> float:
    """Seconds that it takes."""
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await act()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def timed(act: Callable[[], Any], times: int) -> float:
    found: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def private_bytes() -> int:
    """What this process has in memory and no other, now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell")


def ms(seconds: float) -> str:
    return f"{seconds * 1000:,.3f} ms"


def kb(size: float) -> str:
    return f"{size / 1000:,.1f} kB"


def mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


if __name__ == "__main__":
    main()
