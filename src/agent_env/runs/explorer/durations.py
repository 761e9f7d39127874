"""Times in words."""

from __future__ import annotations

__all__ = ["duration_text"]


def duration_text(seconds: float) -> str:
    """A time for people: two or three digits that matter, in the unit that fits."""
    if seconds < 0.00095:
        return f"{seconds * 1e6:.0f} µs" if seconds > 0 else "0 s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
