"""The one idea of every `resume.py`: what was delivered is known at the destination, and nowhere else.

A worker that dies has told nobody how far it came, so a batch comes again, from another worker, maybe cut or dealt
otherwise. A sink that promises `effectively once` then asks two things of the place it writes to:

    already    what of this delivery is there, and is it of this log: `Refused` if it is not, or if we come too late
    note       that it is there now, in a way that cannot come apart from the events themselves

How they are answered differs, since each system has another way to make two writes one. Each `resume.py` says it in
these words as `RESUME`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ResumeScheme:
    kept_in: str
    """Where at the destination."""
    bound_by: str
    """What keeps note and events together, whatever is killed when."""
    replay: str
    """What becomes of an event that comes again."""
    already: Callable[..., Any]
    note: Callable[..., Any]
