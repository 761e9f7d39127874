"""`python -m agent_env` is the command `agent-env`."""

from agent_env.cli import main

main()
