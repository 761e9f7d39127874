"""Asking a model behind an OpenAI-compatible endpoint: simulated users, second agents, judges, `agent-env play --model`.

Covers one question at a time: messages and tools in, a message out, or one clear error. Not conversations: whoever asks
keeps them. The SDK that speaks to endpoints is imported when the first question is asked.
"""

from agent_env.chat.client import Chat, check_model, complete, open_chat
from agent_env.chat.reply import ChatReply, ChatUsage
from agent_env.chat.wire import ToolLike

__all__ = ["Chat", "ChatReply", "ChatUsage", "ToolLike", "check_model", "complete", "open_chat"]
