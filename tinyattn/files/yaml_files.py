"""The YAML reader for sweep, task and cluster files, and for the values of `key=value`.

It is YAML 1.1 as PyYAML reads it, except that 1e-5 is a number and dates are text. Size and depth
are bounded, since a short file can expand without end through aliases of aliases.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tinyattn.errors import ConfigError
from tinyattn.files.outside import DEPTH, UnfitError, check_values, read_text, reason

MOST_BYTES = 2**20
"""Largest file, in bytes."""
MOST_NODES = 20_000
"""Most nodes (keys, values, lists, mappings) of a file, with aliases expanded."""
MOST_LETTERS = 10_000
"""Longest key or value, in characters."""
_STRING = "tag:yaml.org,2002:str"
_DATE = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """SafeLoader with bounds, which are checked while nodes are composed, before objects are."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0
        self._sizes: dict[int, int] = {}
        """Number of nodes in each finished node, by its id, to be counted again for each alias."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._count
        self._refuse_tag(event)
        self._depth += 1
        if self._depth > DEPTH + 1:  # the value in the innermost list has a depth, too
            _fault(event, f"lists and mappings stand more than {DEPTH} deep in each other")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent) and id(node) not in self._sizes:
            _fault(event, "an alias stands in what it stands for")
        self._count += self._sizes.get(id(node), 1)
        if self._count > MOST_NODES:
            _fault(event, f"more than {MOST_NODES:,} keys and values came, aliases written out")
        self._sizes.setdefault(id(node), self._count - before)
        return node

    def _refuse_tag(self, event: yaml.Event) -> None:
        """Refuse all tags but `!!str`: tags change how a value is read."""
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", _STRING):
            _fault(event, f"could not determine what the tag {tag!r:.100} makes; leave it out")
        if len(getattr(event, "value", "")) > MOST_LETTERS:
            _fault(event, f"a value of more than {MOST_LETTERS:,} letters came")

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                _fault(key, "a list or mapping came as a key, allowed is a word")
            if key.value in seen:
                _fault(key, f"the key {key.value!r:.100} is given twice")
            seen.add(key.value)
        return node


def _fault(place: Any, problem: str) -> None:
    raise yaml.composer.ComposerError(None, None, problem, place.start_mark)


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document; raise ConfigError with line and column where it is broken."""
    try:
        value = yaml.load(text, Loader=_Loader)
        check_values(value)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of thousands of digits
        mark = getattr(error, "problem_mark", None)
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split(";")[0].split())
        raise ConfigError(f"{source}{place}: not valid YAML: {problem}") from None
    return value


def read_yaml(path: Path) -> Any:
    """Read one YAML file; raise ConfigError where it cannot be read or parsed."""
    try:
        text = read_text(path, MOST_BYTES)
    except (OSError, UnfitError) as error:
        raise ConfigError(f"{path}: cannot be read: {reason(error)}") from None
    return parse_yaml(text, str(path))
