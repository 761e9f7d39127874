"""tau2-bench's retail domain as a bundle: its database, policy, tasks and splits, on the store env that this package has.

`retail/` holds the files that go into every such bundle. They are data here: read as text, never imported. `store.py` in it
is the one of the retail bundle.
"""

from agent_env.importers.imported import ImportedBundle
from agent_env.importers.tau2.importing import Customer, import_tau2

__all__ = ["Customer", "ImportedBundle", "import_tau2"]
