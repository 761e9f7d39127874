"""Other projects' tasks, made into bundles.

Covers tau2-bench's retail domain (`agent_env.importers.tau2`). An importer reads files and writes a new bundle, all of it
or nothing; it runs no code of what it reads.
"""

from agent_env.importers.imported import ImportedBundle

__all__ = ["ImportedBundle"]
