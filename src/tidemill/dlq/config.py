"""Whether a pipeline keeps dead letters, how many, and what to do when there is no more room."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidemill.contracts import Config


class DlqConfig(Config):
    """`dlq:` of a pipeline. Without it, an event that a sink will never take stops the pipeline."""

    enabled: bool = Field(
        default=True, description="Keep events that a sink will never take, and go on with the others."
    )
    max_letters: int = Field(default=100_000, ge=1, description="Dead letters to keep, over all sinks of the pipeline.")
    max_bytes: int = Field(default=1 << 30, ge=1, description="Bytes of events to keep, over all sinks.")
    overflow: Literal["block", "drop_oldest", "halt"] = Field(
        default="block",
        description="When there is no room: `block` waits until an operator made some, `drop_oldest` removes the "
        "oldest with a warning, `halt` stops as without dead letters.",
    )
