"""The agents that an episode has deployed: their tools, their skills, and those that answer by themselves."""

from __future__ import annotations

from dataclasses import replace

from agent_env.bundle import AddSkills, AgentKind, AgentSpec
from agent_env.envs import EnvSession, ToolSpec
from agent_env.envs.skills import SkillShelf
from agent_env.episode._agents import OtherAgent
from agent_env.episode._calling import render
from agent_env.episode._core import Agent, Core
from agent_env.outcome import FailureKind
from agent_env.verify.step_failed import StepFailedError

__all__ = ["DeployedAgents"]


class DeployedAgents:
    """By name; as the steps so far have made them."""

    __slots__ = ("_agents", "_core", "_others", "_shelves")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._agents: dict[str, Agent] = {}
        self._others: dict[str, OtherAgent] = {}
        self._shelves: dict[str, SkillShelf] = {}

    def get(self, name: str, doing: str) -> Agent:
        """Return an agent.

        Raises:
            StepFailedError: When it was not deployed.
        """
        agent = self._agents.get(name)
        if agent is None:
            message = f"agent '{name}' was not deployed, so it cannot {doing}"
            raise StepFailedError(FailureKind.PROMPT, message)
        return agent

    def put(self, agent: Agent) -> None:
        """Change an agent."""
        self._agents[agent.name] = agent
        if agent.name in self._others:
            self._others[agent.name].agent = agent

    def other(self, name: str) -> OtherAgent | None:
        """Return an agent that answers by itself; None where it is the played one."""
        return self._others.get(name)

    async def deploy(self, spec: AgentSpec) -> None:
        """Deploy an agent, with the tools that its envs have by now.

        Raises:
            StepFailedError: When two of its tools have one name, or its system prompt cannot be written.
        """
        core = self._core
        sessions = [(env, session) for env in spec.envs if (session := core.envs.get(env)) is not None]
        if spec.skills:
            self._shelves[spec.name] = shelf = SkillShelf()
            sessions.append(("skills", shelf))
        tools: list[ToolSpec] = []
        routes: dict[str, EnvSession] = {}
        for env, session in sessions:
            for tool in session.tools:
                if tool.name in routes:
                    message = f"agent '{spec.name}' has two tools '{tool.name}': rename the one in env '{env}'"
                    raise StepFailedError(FailureKind.ENV_START, message)
                tools.append(tool)
                routes[tool.name] = session
        system_prompt = "" if spec.system_prompt is None else await render(spec.system_prompt, core.task)
        agent = Agent(spec, system_prompt, tuple(tools), routes)
        if spec.kind is not AgentKind.PLAYED:
            self._others[spec.name] = OtherAgent(agent, core.task, core.log, run_s=core.limits.run_s)
        self.put(agent)

    def add_skills(self, step: AddSkills) -> None:
        """Give an agent skills.

        Raises:
            StepFailedError: When it was not deployed.
        """
        agent = self.get(step.agent, "be given skills")
        self.put(replace(agent, skills=tuple(dict.fromkeys((*agent.skills, *step.skills)))))
        if step.agent in self._shelves:
            self._shelves[step.agent].skills.update({skill.name: skill for skill in step.skills})
