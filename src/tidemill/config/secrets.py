"""Shows a configuration without its secrets. Everything that prints or serves a spec goes through `mask`.

Hidden are: `SecretStr` fields; the password inside fields marked `json_schema_extra={"secret": True}` (a DSN stays
readable otherwise); and, in free-form maps such as `client_conf`, values whose key sounds like a secret, or which are
a credential of HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

MASK = "***"

_SECRET_KEY = re.compile(
    r"pass(word|wd|phrase)|secret|token|credential|private|\.pem$|jaas|\.key$|(access|api|account)[._-]?key|"
    r"^(proxy-)?authorization$|^(set-)?cookie$|^x-.*(auth|key|signature)",
    re.IGNORECASE,
)
# A header's value that is a credential, whatever the header is called.
_CREDENTIAL = re.compile(r"\s*(bearer|basic|token|apikey|digest|negotiate)\s+\S", re.IGNORECASE)
# The user part may be empty (redis://:pw@host). The password runs to the last "@": people paste passwords that hold
# an "@" or a "/" unescaped, and hiding a little too much is the better mistake.
# Bounded, so that a long text of anybody's costs no more than its length.
_URL_PASSWORD = re.compile(r"(?P<head>[A-Za-z][\w+.-]{0,40}://[^\s:/?#@]*):\S{0,8192}@")
_PAIR_PASSWORD = re.compile(
    r"(?P<head>\b\w*(?:password|passwd|secret|secret_key|token|api_?key|account_?key|access_?key)\s*=\s*)"
    r"('(?:\\.|[^'\\])*'|[^\s&;]+)",
    re.I,
)
_QUERY_SECRET = re.compile(
    r"(?P<head>[?&;](?:key|apikey|api-key|sig|signature|code|auth|x-amz-[\w-]+)=)[^\s&;#]+", re.I
)


def mask(value: Any) -> Any:
    """JSON-ready data; models become dictionaries with every field, also those left at their default."""
    match value:
        case SecretStr() | SecretBytes():
            return MASK
        case BaseModel():
            fields = type(value).model_fields
            return {name: _field(info, getattr(value, name)) for name, info in fields.items()}
        case Mapping():
            return {str(key): MASK if _sounds_secret(key, item) else mask(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [mask(item) for item in value]
        case str() if "://" in value:
            return mask_dsn(value)  # a URL in a field nobody marked may still carry a password
        case _:
            return to_jsonable_python(value)


def reveal(config: BaseModel) -> dict[str, Any]:
    """Plain values with the secrets in them, for a worker that builds the component again. Never shown or logged."""
    return {name: _plain(value) for name in type(config).model_fields if (value := getattr(config, name)) is not None}


def _plain(value: Any) -> Any:
    match value:
        case SecretStr() | SecretBytes():
            return value.get_secret_value()
        case BaseModel():
            return reveal(value)
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return to_jsonable_python(value)


def mask_dsn(dsn: str) -> str:
    """A URL or `key=value` string without its password. Text that is neither is hidden as a whole."""
    if "://" not in dsn and "=" not in dsn:
        return MASK
    without = _URL_PASSWORD.sub(rf"\g<head>:{MASK}@", dsn)
    return _QUERY_SECRET.sub(rf"\g<head>{MASK}", _PAIR_PASSWORD.sub(rf"\g<head>{MASK}", without))


def is_secret(info: FieldInfo) -> bool:
    extra = info.json_schema_extra
    return (isinstance(extra, dict) and bool(extra.get("secret"))) or _mentions_secret(info.annotation)


def _mentions_secret(annotation: Any) -> bool:
    return annotation in (SecretStr, SecretBytes) or any(_mentions_secret(inner) for inner in get_args(annotation))


def sounds_secret(key: str) -> bool:
    return bool(_SECRET_KEY.search(key))


def _sounds_secret(key: object, value: object) -> bool:
    return isinstance(value, str) and (sounds_secret(str(key)) or _CREDENTIAL.match(value) is not None)


def _field(info: FieldInfo, value: Any) -> Any:
    if value is None or not is_secret(info):
        return mask(value)
    if isinstance(value, str):
        return mask_dsn(value)
    if isinstance(value, list | tuple):
        return [mask_dsn(item) if isinstance(item, str) else MASK for item in value]
    return dict.fromkeys(value, MASK) if isinstance(value, Mapping) else MASK
