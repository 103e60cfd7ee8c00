"""Which pipelines a token is for: all of a server, those of one tenant (`metadata.tenant`), or one pipeline.

A pipeline outside of the scope does not exist for who asks: it is in no list, and its name is answered as an unknown
one. What belongs to the server as a whole needs a token for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.errors import AccessRefused


@dataclass(frozen=True, slots=True)
class Scope:
    """Both empty: everything."""

    tenant: str = ""
    pipeline: str = ""

    @property
    def is_whole(self) -> bool:
        return not self.tenant and not self.pipeline

    def __str__(self) -> str:
        if self.is_whole:
            return "all pipelines"
        return f"tenant {self.tenant}" if self.tenant else f"pipeline {self.pipeline}"

    def covers(self, pipeline: str, tenant: str | None) -> bool:
        return (not self.tenant or self.tenant == tenant) and (not self.pipeline or self.pipeline == pipeline)

    def check_document(self, pipeline: str, tenant: str | None) -> None:
        """Of a document that is to be created or changed: nobody makes what they could not see."""
        if not self.covers(pipeline, tenant):
            fix = (
                f"metadata.tenant must be {self.tenant}." if self.tenant else f"metadata.name must be {self.pipeline}."
            )
            raise AccessRefused(f"the token is for {self} only", where="metadata", fix=f"{fix} Nothing was changed.")

    def check_server(self, where: str) -> None:
        if not self.is_whole:
            raise AccessRefused(
                f"the token is for {self} only, and this is about the server", where=where,
                fix="Use a token for all pipelines.",
            )  # fmt: skip


WHOLE = Scope()
