"""What the submitted schedule saved, against idling and against the best schedule."""

from __future__ import annotations

from typing import Any

from .. import battery as rules


def score(episode: Any) -> dict[str, Any]:
    """0 when nothing was submitted; otherwise the day's score, with what it is made of."""
    site = episode.state("grid")
    submitted = site["submitted"]
    if submitted is None:
        return {"score": 0.0, "explanation": "no schedule was submitted", "metrics": {"submitted": 0.0}}
    battery, day = rules.Battery(**site["battery"]), rules.Day.of(episode.params)
    best = rules.best_schedule(battery, day)
    saving, most = rules.play(battery, day, submitted).saving, rules.play(battery, day, best).saving
    return {
        "score": rules.score(battery, day, submitted),
        "explanation": f"saved {saving:.2f} EUR; the best schedule saves {most:.2f} EUR: {', '.join(best)}",
        "metrics": {"submitted": 1.0, "saving_eur": saving, "best_saving_eur": most},
    }
