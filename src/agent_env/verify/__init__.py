"""Verifying: what an episode left becomes scores, and scores become the reward.

Covers what a verifier is shown and what it may return. `agent_env.verify.reward` makes rewards.
"""

from agent_env.verify.reward import RewardRule, resolve_reward, reward_of
from agent_env.verify.view import CallRecord, EpisodeView, Message, ToolCall, UnreadableCall

__all__ = [
    "CallRecord",
    "EpisodeView",
    "Message",
    "RewardRule",
    "ToolCall",
    "UnreadableCall",
    "resolve_reward",
    "reward_of",
]
