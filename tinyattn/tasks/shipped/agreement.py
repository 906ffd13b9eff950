"""The built-in task `agreement`: is a sentence grammatical in number? It is generated, not read.

Each sentence has a twin that differs only in the number of one word, a determiner (*these old
clerk*) or a verb (*the clerks near the door is*). One twin is acceptable, the other not, so no
single word tells which: a model must compare two words, several words apart, with nouns of the
other number between them. Twins are in the same split, and no sentence is in two splits.
"""

from __future__ import annotations

import random
from functools import cache

from tinyattn.tasks.base import Task

AGREEMENT = Task(
    name="agreement",
    text_columns=("sentence",),
    labels=("unacceptable", "acceptable"),
    score_range=None,
    metrics=("accuracy",),
    group_column="pair",
)

SIZES = {"train": 3_000, "validation": 1_000, "test": 1_000}
"""Rows of each split, half of them acceptable."""

_SEED = 20_221_207  # of the one published version of these data; a change makes another task


def _nouns(words: str) -> tuple[str, ...]:
    return tuple(f"{word}/{word}s" for word in words.split())


GRAMMAR: dict[str, tuple[str, ...]] = {
    "SENTENCE": ("DEMONSTRATIVE", "VERBAL"),
    "DEMONSTRATIVE": ("THIS* SOME_ADJECTIVES PERSON PLACE PREDICATE",),
    "VERBAL": ("the ADJECTIVES PERSON GAP BE* STATE", "the ADJECTIVES PERSON GAP HAVE* DONE"),
    "PREDICATE": ("BE STATE", "HAVE DONE"),
    "SOME_ADJECTIVES": ("ADJECTIVE", "ADJECTIVE ADJECTIVE"),
    "ADJECTIVES": ("", "ADJECTIVE"),
    "PLACE": ("", "PREPOSITION the THING'"),
    "GAP": ("", "PREPOSITION the THING'", "PREPOSITION the THING'", "that the PERSON' KNOW'"),
    "THIS": ("this/these", "that/those"),
    "BE": ("is/are", "was/were"),
    "HAVE": ("has/have",),
    "KNOW": ("knows/know", "likes/like", "helps/help", "sees/see"),
    "PREPOSITION": ("near", "behind", "beside"),
    "STATE": ("tired", "happy", "late", "here", "ready", "outside", "alone", "sick", "awake"),
    "DONE": ("laughed", "waited", "slept", "worked", "arrived", "smiled", "left"),
    "ADJECTIVE": ("old", "young", "tall", "quiet", "famous", "clever"),
    "PERSON": _nouns("author pilot teacher farmer doctor guard singer lawyer banker chef"),
    "THING": _nouns("car book door letter house ship bridge table"),
}
"""A context-free grammar: symbol -> equally likely expansions.

`singular/plural` agrees with the subject, or, below a symbol marked `'`, with the noun in between,
whose number is its own. The word below `*` is the one in which the twins differ.
"""


@cache
def generate_splits() -> dict[str, dict[str, list[str] | list[int]]]:
    """Return each split as columns `sentence`, `label` (1: acceptable) and `pair`."""
    draw = _Draw(_SEED)
    seen: set[str] = set()
    return {split: _split(draw, size // 2, seen) for split, size in SIZES.items()}


def _split(draw: _Draw, num_pairs: int, seen: set[str]) -> dict[str, list[str] | list[int]]:
    """Draw pairs whose sentences were not `seen`, and shuffle the rows."""
    rows: list[tuple[str, int, int]] = []
    while len(rows) < 2 * num_pairs:
        acceptable, unacceptable = _twins(draw)
        if acceptable not in seen and unacceptable not in seen:
            seen |= {acceptable, unacceptable}
            pair = len(rows) // 2
            rows += [(acceptable, 1, pair), (unacceptable, 0, pair)]
    rows.sort(key=lambda row: draw.fraction())
    sentences, labels, pairs = zip(*rows, strict=True)
    return {"sentence": list(sentences), "label": list(labels), "pair": list(pairs)}


class _Draw:
    """Random choices from `random.Random.random`, which gives one stream on every Python."""

    def __init__(self, seed: int) -> None:
        self.fraction = random.Random(seed).random

    def choose(self, options: tuple[str, ...]) -> str:
        return options[int(self.fraction() * len(options))]

    def number(self) -> int:
        """0 for singular, 1 for plural."""
        return int(self.fraction() * 2)


def _twins(draw: _Draw) -> tuple[str, str]:
    """Draw an acceptable sentence and its unacceptable twin."""
    words = _expand("SENTENCE", draw, marks="")
    subject, between = draw.number(), draw.number()

    def spell(flipped: int) -> str:
        numbers = {"": subject, "'": between, "*": subject ^ flipped}
        return " ".join(_inflect(word, numbers[marks]) for word, marks in words)

    return spell(0), spell(1)


def _expand(symbol: str, draw: _Draw, marks: str) -> list[tuple[str, str]]:
    """Expand a symbol to words, each with the mark it stands below."""
    name = symbol.rstrip("*'")
    marks = marks or symbol[len(name) :]
    if name not in GRAMMAR:
        return [(name, marks)]
    symbols = draw.choose(GRAMMAR[name]).split()
    return [word for symbol in symbols for word in _expand(symbol, draw, marks)]


def _inflect(word: str, number: int) -> str:
    forms = word.split("/")
    return forms[number] if len(forms) == 2 else word
