"""Whether the right books are lent to the right members in the end."""

from agent_env import EpisodeView


def score(episode: EpisodeView) -> dict[str, object]:
    """Return 1 (true) when exactly the books are lent that `params.lent` says, to those that it says; else 0.

    The explanation is for whoever reads the run.
    """
    books = episode.state()["books"]
    lent = {book: entry["lent_to"] for book, entry in books.items() if entry["lent_to"] is not None}
    wanted = episode.params["lent"]
    wrong = [
        f"{book}: {lent.get(book, 'here')} instead of {wanted.get(book, 'here')}"
        for book in books
        if lent.get(book) != wanted.get(book)
    ]
    return {"score": not wrong, "explanation": "; ".join(wrong) or "every book is where it should be"}
