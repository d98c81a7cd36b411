"""How an error looks that a person will read."""

from __future__ import annotations

__all__ = ["check_one_line"]


def check_one_line(error: BaseException) -> None:
    """An error for people: one line, and no trace."""
    assert str(error)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)
