"""What a handler is given: the control plane, and who asks, with the role that the route needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from tidemill.errors import AccessRefused, Unauthenticated
from tidemill.service.cause import Cause
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Principal, Role


def _control(request: Request) -> ControlPlane:
    control: ControlPlane = request.app.state.control
    return control


def _needs(role: Role, *, server: bool = False) -> Callable[[Request], Principal]:
    """`server`: for what is about the server as a whole, a token for one tenant or pipeline is not enough."""

    def check(request: Request) -> Principal:
        principal: Principal | None = request.state.principal
        if principal is None:
            raise Unauthenticated("this needs a valid token", fix="Send `Authorization: Bearer TOKEN`.")
        if not principal.role.covers(role):
            raise AccessRefused(
                f"the role {principal.role} does not allow this",
                where=f"token {principal.id} ({principal.name})",
                fix=f"It needs the role {role}.",
            )
        if server:
            principal.scope.check_server(f"token {principal.id} ({principal.name})")
        if "name" in request.path_params and not principal.scope.is_whole:
            _control(request).check_scope(principal.scope, request.path_params["name"])
        return principal

    return check


def _cause(principal: Principal, reason: str) -> Cause:
    return Cause(principal.actor, reason)


Control = Annotated[ControlPlane, Depends(_control)]
Viewer = Annotated[Principal, Depends(_needs(Role.VIEWER))]
Operator = Annotated[Principal, Depends(_needs(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(_needs(Role.ADMIN))]
ServerAdmin = Annotated[Principal, Depends(_needs(Role.ADMIN, server=True))]
Name = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, description="The pipeline's name.", examples=["orders"]
    ),
]
Reason = Annotated[str, Query(max_length=500, description="Why, for the record of changes.")]
IfMatch = Annotated[
    str | None,
    Header(
        max_length=2000,
        description="Change it only if it has this version: the ETag of a GET.",
        examples=['"5f1c0a9b7d3e2f41"'],
    ),
]
_ETAG = re.compile(r'^(W/)?"([^"]*)"$')


def versions(if_match: str | None) -> Sequence[str] | None:
    """None where any version will do."""
    if if_match is None or if_match.strip() == "*":  # in quotes it is a version
        return None
    found = [_ETAG.match(each.strip()) for each in if_match.split(",")]
    return [each[2] if each else "" for each in found]


def operator_cause(
    principal: Operator, control: Control, request: Request, reason: Reason = "", if_match: IfMatch = None
) -> Cause:
    """Of what operators do to one pipeline: with `If-Match` only if its document is as they know it."""
    expected = versions(if_match)
    if expected is not None:
        control.check_version(request.path_params["name"], expected)
    return _cause(principal, reason)


def admin_cause(principal: Admin, reason: Reason = "") -> Cause:
    return _cause(principal, reason)


def server_cause(principal: ServerAdmin, reason: Reason = "") -> Cause:
    return _cause(principal, reason)


ByOperator = Annotated[Cause, Depends(operator_cause)]
ByAdmin = Annotated[Cause, Depends(admin_cause)]
ByServerAdmin = Annotated[Cause, Depends(server_cause)]
