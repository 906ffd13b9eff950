"""Secrets in URIs: found in configuration files, hidden in messages.

A URI may hold a password before its host (`//user:password@host`) or in its options
(`?password=...`). Messages tend to quote malformed URIs, so in doubt too much is hidden.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

_BEFORE_HOST = re.compile(r"(?P<shown>//[^/@:\s]*:)(?P<secret>.*)@")
"""A password before the host, up to the last @: it may contain an @ or a slash, unescaped. Only
`_before_host` uses it: by itself it takes the square of a text's length."""
_TOKEN_AS_USER = re.compile(
    r"(?P<shown>(https?|databricks(-uc)?)://)(?P<secret>[^/@:\s]+)@", re.IGNORECASE
)
_DATABRICKS_TOKEN = re.compile(r"(?P<shown>databricks(-uc)?:/+)(?P<secret>dapi\w+)", re.IGNORECASE)
"""A token where a profile's name belongs."""
_ADDRESS = re.compile(r"(?<![\w+.-])[\w+.-]*:/\S*")
"""An address in a message, also one that is glued to what stands before it, as in `-http://`; as a
path it has lost the second slash of `://`."""
_SQLITE_FILE = re.compile(
    r"(?<![\w+.-])sqlite(?:\+pysqlite)?:(?:///|/(?!/))(?:(?!\w://)[^\s?&;,'\"])*"
)
"""An address of a file up to its options: its folders may have any name, also `key=1`."""
_SET_ASIDE = re.compile(r"\0_(\d+)_\0")
_OPTION = re.compile(r"(?P<shown>(?<![\w.%+-])(?P<key>[\w.%+-]+)=)(?P<secret>[^\s&;]+)")
_OF_OPTIONS = re.compile(
    r"(?P<shown>[?&;](odbc_connect|options)=)(?P<secret>[^\s&;]+)", re.IGNORECASE
)
"""Options whose values are further options in the database's own syntax; hidden completely."""
_WHOLE_OPTION = re.compile(
    r"(?<![\w.%+-])(?P<key>[\w.%+-]+)=(?P<secret>[^&;]*(?:[&;][^=&;]*(?=[&;]|$))*)"
)
"""An option in a URI by itself; its value may hold spaces, or an & not escaped as %26."""
_NAMES_A_SECRET = re.compile(
    r".*(passw|passphrase|pwd|secret|token(?!iz)).*|.*(pass|sig|signature|sas|credentials?|key|key_?id)",
    re.IGNORECASE,
)
_NAMES_NO_SECRET = re.compile(
    r"ssl_?key|viewstatesharekey|.*(file|path|dir|mode|url)|(.*_)?(ib_pkey|askpass|bypass|disable_.*)",
    re.IGNORECASE,
)
"""Options that sound like secrets but are paths, network partitions, programs, switches or
a page of MLflow's."""
_PORT = re.compile(r"\d{1,5}/")
_USER_AND_PASSWORD = re.compile(r"[^/\s@:=]+:(?P<secret>[^/\s@]+)@(?!sha256:)")
"""User and password without a scheme, as before the registry of a container image."""
_HIDDEN = "***"


def without_secrets(text: str, *uris: str) -> str:
    """Return a message or URI with the secrets of the URIs in it hidden.

    Args:
        text: the message.
        uris: URIs that the message may quote in part, as errors of URI parsers do.
    """
    if "\0" in text:  # no path holds one
        return _hidden(text, *uris)
    files = _SQLITE_FILE.findall(text)
    numbers = itertools.count()
    aside = _SQLITE_FILE.sub(lambda _: f"\0_{next(numbers)}_\0", text)
    return _SET_ASIDE.sub(lambda found: files[int(found[1])], _hidden(aside, *uris))


def _hidden(text: str, *uris: str) -> str:
    for part in sorted({p for uri in uris for p in _parts(uri)}, key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(part)}(?!\w)", _HIDDEN, text)
    shown, end = [], 0
    for found in _before_host(text):
        shown += [text[end : found.start("secret")], _HIDDEN]
        end = found.end("secret")
    text = "".join([*shown, text[end:]])
    text = _TOKEN_AS_USER.sub(rf"\g<shown>{_HIDDEN}@", text)
    text = _DATABRICKS_TOKEN.sub(rf"\g<shown>{_HIDDEN}", text)
    text = _OF_OPTIONS.sub(rf"\g<shown>{_HIDDEN}", text)
    return _OPTION.sub(
        lambda found: f"{found['shown']}{_HIDDEN}" if _is_secret(found) else found[0], text
    )


def hide_credentials(message: str) -> str:
    """Return a message with the secrets of all addresses in it hidden, which need not be known.

    Only passwords without a blank are found.
    """
    return _ADDRESS.sub(lambda found: _shown_address(found[0]), message)


def _shown_address(address: str) -> str:
    scheme, _, rest = address.partition(":")
    rest = rest.removeprefix("/").removeprefix("/")
    whole = f"{scheme}://{rest}"
    if _SQLITE_FILE.fullmatch(address) or not has_secret(whole):
        return address
    shown = without_secrets(whole)
    return shown if address.startswith(f"{scheme}://") else shown.replace("://", ":/", 1)


def has_secret(text: str, *, shell: bool = False) -> bool:
    """Return whether a text contains a URI with a password or key.

    Args:
        text: a URI, or commands that contain URIs.
        shell: whether a value that begins with $ is a shell variable, thus no secret.
    """
    text = _SQLITE_FILE.sub("sqlite", text)
    found = [match for match in _before_host(text) if not _PORT.match(match["secret"])]
    found += [*_TOKEN_AS_USER.finditer(text), *_DATABRICKS_TOKEN.finditer(text)]
    found += filter(_is_secret, _OPTION.finditer(text))
    in_full = [match for match in found if not (shell and _is_variable(match["secret"]))]
    return bool(in_full or _USER_AND_PASSWORD.match(text))


def names_secret(key: str) -> bool:
    """Return whether an option or environment variable of this name holds a secret."""
    key = unquote(key)
    return bool(_NAMES_A_SECRET.fullmatch(key)) and not _NAMES_NO_SECRET.fullmatch(key)


def _before_host(text: str) -> Iterator[re.Match[str]]:
    """Yield the passwords before hosts: at most one a line, as each goes to the line's last @."""
    begin = 0
    for line in text.split("\n"):
        last = line.rfind("@")
        if last >= 0 and (found := _BEFORE_HOST.search(text, begin, begin + last + 1)):
            yield found
        begin += len(line) + 1


def _is_secret(option: re.Match[str]) -> bool:
    """Whether an option is a secret, or has a secret among options in its value, as in ODBC."""
    inner = _OPTION.finditer(unquote_plus(option["secret"]))
    return (
        names_secret(option["key"])
        or unquote(option["key"]).lower() == "auth"
        or any(names_secret(one["key"]) for one in inner)
    )


def _is_variable(value: str) -> bool:
    """Whether a value is a reference to a shell variable."""
    return value.rpartition("=")[2].lstrip("\"'").startswith("$")


def _parts(uri: str) -> Iterator[str]:
    """Yield the secrets of a URI, and the parts into which a parser may have split them."""
    uri = _SQLITE_FILE.sub("sqlite", uri)
    found = [*_before_host(uri), *_TOKEN_AS_USER.finditer(uri)]
    found += _DATABRICKS_TOKEN.finditer(uri)
    found += filter(None, [_USER_AND_PASSWORD.match(uri)])
    for text in {uri, unquote_plus(uri)}:
        found += filter(_is_secret, _WHOLE_OPTION.finditer(text))
    for match in found:
        for secret in {match["secret"], unquote(match["secret"]), unquote_plus(match["secret"])}:
            yield secret
            yield from (part for part in re.split(r"[/:@?#&;=\s]", secret) if len(part) > 1)
