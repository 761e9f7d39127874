"""The explorer: pages in a browser that show what the runs of a folder did, by training step.

Rendered on the server, read-only, for this machine alone unless others have the token; or written as one page, to attach somewhere.
"""

from __future__ import annotations

from agent_env.runs.explorer.app import build_app
from agent_env.runs.explorer.report import EPISODES, Report, make_report
from agent_env.runs.explorer.serve import serve

__all__ = ["EPISODES", "Report", "build_app", "make_report", "serve"]
