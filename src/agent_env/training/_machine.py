"""What the tasks of a training need of this machine, looked at before it begins: sandboxes, and models that others play."""

from __future__ import annotations

from collections.abc import Iterable

from agent_env.bundle import DeployEnv, ModelSpec, SandboxSpec, Task
from agent_env.chat import check_model
from agent_env.sandbox import check_sandbox
from agent_env.verify.permission import judges_allowed

__all__ = ["check_machine"]


async def check_machine(tasks: Iterable[Task]) -> None:
    """See that the tasks can be played here. Nothing is started that stays, and no model is asked.

    Raises:
        SandboxUnavailableError: When this machine cannot open one of their sandboxes; the message says what to do.
        ModelServerError: When the variable that holds a model's key is not set.
        MissingExtraError: When what speaks to models is not installed.
        UsageError: When a model's `base_url` is no URL.
    """
    sandboxes: list[SandboxSpec] = []
    models: dict[ModelSpec, None] = {}
    for task in tasks:
        models |= dict.fromkeys(task.models(judges=judges_allowed()))
        for step in task.steps:
            sandbox = task.bundle.envs[step.env].sandbox if isinstance(step, DeployEnv) else None
            if sandbox is not None and sandbox not in sandboxes:
                sandboxes.append(sandbox)
    for model in models:
        check_model(model)
    for sandbox in sandboxes:
        await check_sandbox(sandbox)
