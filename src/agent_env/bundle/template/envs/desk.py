"""The tools of the desk. What the model sees of each comes from its type hints and its docstring."""

from typing import Any

from agent_env import Env, ToolError, tool

MOST_BOOKS = 2
"""How many books a member may have at a time."""


class Desk(Env):
    """The desk over its universe: `self.state` is this episode's own copy, and `self.params` are the task's params."""

    @tool
    def find_books(self, title: str) -> list[dict[str, Any]]:
        """Find books by their title, or a part of it. Case does not count.

        Args:
            title: The title, or a part of it; empty finds every book.
        """
        return [
            {"book": book, **entry}
            for book, entry in self.state["books"].items()
            if title.casefold() in entry["title"].casefold()
        ]

    @tool
    def lend(self, book: str, member: str) -> str:
        """Lend a book to a member.

        Args:
            book: The book, as find_books names it.
            member: The member's first name, in lower case.
        """
        entry = self._entry(book)
        if entry["lent_to"] is not None:
            # A refusal is an answer that the model reads. The episode goes on.
            raise ToolError(f"{book} is lent to {entry['lent_to']}: take it back first")
        if sum(other["lent_to"] == member for other in self.state["books"].values()) >= MOST_BOOKS:
            raise ToolError(f"{member} has {MOST_BOOKS} books already")
        entry["lent_to"] = member
        return f"{book} is lent to {member}"

    @tool
    def take_back(self, book: str) -> str:
        """Take back a book that a member has brought.

        Args:
            book: The book, as find_books names it.
        """
        entry = self._entry(book)
        if entry["lent_to"] is None:
            raise ToolError(f"{book} is not lent")
        entry["lent_to"] = None
        return f"{book} is back"

    def _entry(self, book: str) -> dict[str, Any]:
        if book not in self.state["books"]:
            raise ToolError(f"there is no book '{book}': find_books names them")
        return self.state["books"][book]
