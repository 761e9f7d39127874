"""AgentEnv: a folder of agent tasks, played, recorded and trained on."""
