"""Lists in pages: one has as many as were asked for, and the header `Link` has the address of the next."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request, Response

Before = Annotated[
    int | None,
    Query(ge=1, le=2**63 - 1, description="Only those whose numbers are below this one.", examples=[41]),
]


def link_next(request: Request, response: Response, **place: object) -> None:
    """`place` is where the next page begins, as a parameter of the query."""
    following = request.url.include_query_params(**place)
    response.headers["Link"] = f'<{quote(f"{following.path}?{following.query}", safe="/?=&%")}>; rel="next"'
