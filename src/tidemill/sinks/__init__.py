"""Where events go. Each module or package here is a sink, and its name is the `type:` in YAML.

Sinks of other packages take what they need for a wire format from here; `_shared` is for the sinks of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.sinks._shared.encoded import EncodedSinkConfig, encoder, no_headers

__all__ = ["EncodedSinkConfig", "encoder", "no_headers"]


def __getattr__(name: str) -> Any:
    """On first use: a worker with one sink does not load the clients of schema registries."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidemill.sinks._shared import encoded

    return getattr(encoded, name)
