"""What a document from outside may reach on this machine: variables on a list, files below some directories, no code.

A document that came over the API was written by somebody who has no account here. Its settings must not read a key, a
password file or a socket of the server's user, write where that user may, or run code of its own. What is not known to
be harmless is refused: a string that looks like a local path counts as one, in whatever field it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from tidemill.config.pipeline import Pipeline
from tidemill.config.problem import Path, Problem, dotted_path
from tidemill.config.spec import Spark
from tidemill.state.postgres_uri import split_schema

# Options of DSNs that name a local file, a socket, or a section of one.
_FILE_OPTIONS = re.compile(
    r"(ssl_?(key|cert|rootcert|crl|crldir|ca|capath|cafile|ca_certs|ca_path|ca_data|certfile|keyfile)|"
    r"pass_?file|service|servicefile|unix_?socket|read_default_file|defaults_file|krbsrvname|requirepeer)",
    re.IGNORECASE,
)
_LOCAL_SCHEMES = frozenset({"file", "local", "unix", "sqlite", "sqlite3", "jdbc"})
# They mean whatever file system Hadoop's settings on this machine name: where there are none, the machine's own.
_HADOOP_SCHEMES = frozenset({"hdfs", "viewfs", "webhdfs", "har"})
# What libpq takes for a URI; everything else is `key=value` for it.
_LIBPQ_URI = re.compile(r"postgres(ql)?://")
# Options of libpq that reach nothing on this machine. Not `options`: it can set anything in the session.
_LIBPQ_OPTIONS = re.compile(
    r"host|hostaddr|port|user|password|dbname|connect_timeout|(fallback_)?application_name|client_encoding|"
    r"keepalives(_\w+)?|tcp_user_timeout|target_session_attrs|load_balance_hosts|channel_binding|require_auth|"
    r"ssl(mode|password|compression|certmode|sni|negotiation)|(ssl_)?(min|max)_protocol_version"
)
_LIBPQ_FILES = re.compile(r"ssl(key|cert|rootcert|crl|crldir|keylogfile)|passfile")
# Free-form settings of a library, such as librdkafka's, and their keys whose value is a path or runs something.
_SETTINGS_FIELD = re.compile(r"(^|_)(conf|config|options|settings|properties)$")
_PATH_KEY = re.compile(r"(location|paths?|files?|dir|directory|keystore|truststore|keytab)$", re.IGNORECASE)
_CODE_KEY = re.compile(r"(cmd|command|library|plugin|librar(y|ies)\.paths?)", re.IGNORECASE)
_PATH_FIELDS = frozenset({"path", "file", "directory", "state_dir"})
_PATH_SUFFIXES = ("_file", "_dir", "_directory", "_keytab")
_REMOTE_PATHS = frozenset({"s3"})  # whose `path` is a name in a bucket
_CODE_FIELDS = frozenset({"inline"})  # code of a processor that may run is no path
_LOOKS_LOCAL = re.compile(r"^\s*[/~]|(^|/)\.\.(/|$)")
_PAIR = re.compile(r"(\w+)\s*=\s*('(?:\\.|[^'\\])*'|[^\s&;]*)")
# They run in an engine of their own, or no code of the document at all.
SAFE_PROCESSORS = frozenset(
    {"javascript", "filter", "mask", "flatten", "outbox", "route", "compact", "rename", "drop", "keep"}
)


@dataclass(frozen=True, slots=True)
class NeverAllowed:
    """What no root allows."""

    what: str


Reach = tuple[Path, str | NeverAllowed]
"""Where in the document, and what is reached: a path, or what is refused whatever it is."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """`roots` are directories below which a document may name files; `variables` those it may use; with `code` also
    processors that run the document's own code in the server's workers."""

    roots: tuple[FilePath, ...] = ()
    variables: frozenset[str] = frozenset()
    code: bool = False

    def environment(self, whole: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in whole.items() if name in self.variables}

    def allows(self, path: str) -> bool:
        """Whether it is below a root, symbolic links followed. A template's value cannot lead out of its directory."""
        place = FilePath(re.sub(r"\$\{[^}]*\}", "_", path)).expanduser().absolute().resolve()
        return any(place.is_relative_to(root.resolve()) for root in self.roots)


def violations(
    pipeline: Pipeline, confinement: Confinement, *, state_dir: str, state_uri: str | None = None
) -> list[Problem]:
    """Every setting that reaches too far. `state_dir` and `state_uri` are the server's own, which a document may
    have."""
    found: list[Problem] = []

    def add(at: Path, what: str, fix: str) -> None:
        found.append(Problem(pipeline.file, 0, ("spec", *at), what, fix))

    spec = pipeline.spec
    if spec.spark.master != Spark().master or spec.spark.conf:
        add(("spark",), "a document of the API cannot choose Spark's settings: they run code in the server",
            "Give them in a file of --config.")  # fmt: skip
    for index, processor in enumerate(spec.processors):
        if processor.type not in SAFE_PROCESSORS and not confinement.code:
            add(("processors", index, "type"), f'processor "{processor.type}" would run the document\'s code here',
                "Start the server with --allow-code, or give the document in a file of --config.")  # fmt: skip
    for at, path in _local_paths(spec, ()):
        if (
            at == ("state_dir",)
            and isinstance(path, str)
            and FilePath(path).absolute() == FilePath(state_dir).absolute()
        ):
            continue
        if at[:1] == ("spark",) or (at == ("state_uri",) and spec.state_uri == state_uri):
            continue
        if isinstance(path, NeverAllowed):
            add(at, f"{dotted_path(at)} {path.what}", "Leave it out, or give the document in a file of --config.")
        elif not confinement.allows(path):
            roots = ", ".join(map(str, confinement.roots)) or "none"
            add(at, f"{dotted_path(at)} names a file or socket of the server",
                f"Allowed are paths below --root directories: {roots}.")  # fmt: skip
    return found


def _local_paths(value: Any, at: Path, *, kind: str = "") -> Iterator[Reach]:
    """Where, and the path."""
    match value:
        case BaseModel():
            kind = str(getattr(value, "type", kind))
            for name, info in type(value).model_fields.items():
                inner = getattr(value, name)
                if inner is None or name in _CODE_FIELDS:
                    continue
                plain = isinstance(inner, str) and "://" not in inner
                named = (name in _PATH_FIELDS and kind not in _REMOTE_PATHS) or (*at, name) == ("log", "uri")
                named = named or (bool(inner) and name.endswith(_PATH_SUFFIXES))
                if (*at, name) == ("state_uri",):
                    yield from _in_libpq(split_schema(inner)[0], (name,))
                elif isinstance(inner, str) and _is_libpq(name, inner):
                    yield from _in_libpq(inner, (*at, name))
                elif (plain and named) or (isinstance(inner, str | FilePath) and _mentions_path(info.annotation)):
                    yield (*at, name), str(inner)
                else:
                    yield from _local_paths(inner, (*at, name), kind=kind)
        case SecretStr():
            secret = value.get_secret_value()
            yield from _in_string(secret, at) if "://" in secret else ()  # a password may look like anything
        case FilePath():
            yield at, str(value)
        case str():
            yield from _in_string(value, at)
        case Mapping():
            settings = bool(at and _SETTINGS_FIELD.search(str(at[-1])))
            for key, item in value.items():
                if settings and _CODE_KEY.search(str(key)):
                    yield (*at, str(key)), NeverAllowed("may not run anything")
                elif settings and isinstance(item, str) and _PATH_KEY.search(str(key)):
                    yield (*at, str(key)), item
                else:
                    yield from _local_paths(item, (*at, str(key)), kind=kind)
        case list() | tuple() | set() | frozenset():
            for index, item in enumerate(value):
                yield from _local_paths(item, (*at, index), kind=kind)


def _is_libpq(field: str, text: str) -> bool:
    """Whether libpq is given it: by its scheme, or as a DSN that has none of its own."""
    return bool(_LIBPQ_URI.match(text)) or (field == "dsn" and not re.match(r"\s*[A-Za-z][\w+.-]*://", text))


def _in_libpq(text: str, at: Path) -> Iterator[Reach]:
    """Read by libpq itself: any other reading of a DSN can be led astray."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        options = {key: str(value) for key, value in conninfo_to_dict(text).items() if value is not None}
    except ProgrammingError:
        yield at, NeverAllowed("is no connection string of PostgreSQL")
        return
    hosts = options.get("hostaddr") or options.get("host", "")
    for host in (*hosts.split(","), *options.get("host", "x").split(",")):
        if not host or host.startswith(("/", "@", ".")):
            yield at, host or "/"  # libpq takes a local socket where no host is named
            return
    for key, value in options.items():
        if _LIBPQ_FILES.fullmatch(key):
            if value and (key, value) != ("sslrootcert", "system"):
                yield at, value
        elif not _LIBPQ_OPTIONS.fullmatch(key) and (key, value) != ("gssencmode", "disable"):
            yield at, NeverAllowed(f"has the option {key}, which a document of the API may not use")


def _in_string(text: str, at: Path) -> Iterator[Reach]:
    if _LIBPQ_URI.match(text):
        yield from _in_libpq(text, at)
    elif "://" in text:
        yield from _in_url(text, at)
    elif _LOOKS_LOCAL.search(text):
        yield at, text.strip()
    elif "=" in text:  # host=… sslkey=…, as libpq takes it
        pairs = [(key, re.sub(r"\\(.)", r"\1", value.strip("'"))) for key, value in _PAIR.findall(text)]
        yield from ((at, value) for key, value in pairs if _is_local_option(key, value))


def _in_url(text: str, at: Path) -> Iterator[Reach]:
    try:
        parts = urlsplit(text.strip())
        options = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        yield at, text  # what cannot be read may be anything
        return
    schemes = set(parts.scheme.lower().split("+"))
    if schemes & _LOCAL_SCHEMES:
        yield at, unquote(f"{parts.netloc}{parts.path}") or "/"
    host, *_port = parts.netloc.rpartition("@")[2].lower().split(":")
    if schemes & _HADOOP_SCHEMES and (not host or host == "default" or "viewfs" in schemes):
        yield at, unquote(parts.path) or "/"
    hosts = parts.netloc.rpartition("@")[2].split(",")
    yield from ((at, unquote(host)) for host in hosts if unquote(host).startswith(("/", "@", ".")))
    yield from ((at, value or "/") for key, value in options if _is_local_option(key, value))


def _is_local_option(key: str, value: str) -> bool:
    if key.lower() in ("host", "hostaddr"):
        return any(not part or part.startswith(("/", "@", ".")) for part in value.split(","))
    if _FILE_OPTIONS.fullmatch(key):
        return value not in ("", "system")
    return bool(_LOOKS_LOCAL.search(value))


def _mentions_path(annotation: Any) -> bool:
    return annotation is FilePath or any(_mentions_path(inner) for inner in get_args(annotation))
