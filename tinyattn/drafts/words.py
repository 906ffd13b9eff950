"""Usual names of columns, and what values look like."""

from __future__ import annotations

import re
from collections.abc import Sequence

TEXTS = frozenset((
    "text", "texts", "sentence", "review", "tweet", "body", "content", "message", "comment",
    "utterance", "post", "document", "headline", "abstract", "query", "question",
    "description", "email", "sms", "words", "tokens", "source", "input",
))  # fmt: skip
"""Names that columns of texts usually have."""
LABELS = frozenset((
    "label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "score",
    "rating", "stars", "polarity", "emotion", "similarity", "relatedness", "tag", "tags",
    "output", "summary", "answer", "response", "grade", "y",
))  # fmt: skip
"""Names that columns of labels, scores and targets usually have."""
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text1", "text2"), ("text_a", "text_b"), ("question", "sentence"), ("query", "passage"),
    ("s1", "s2"), ("sentence_a", "sentence_b"), ("first", "second"),
)  # fmt: skip
"""Names that the two columns of a pair usually have."""
TAGS = ("ner_tags", "tags", "pos_tags", "labels", "ner", "chunk_tags")
"""Names that columns of a label for each word usually have, the first preferred."""
_OTHERS = frozenset((
    "id", "idx", "index", "guid", "uuid", "title", "name", "date", "url", "user", "author",
    "subject",
))  # fmt: skip
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_SHORT = 4
"""Most words of a label, in the mean."""


def parts_of(name: str) -> list[str]:
    """Return the words of a column's name, as in `airline_sentiment` and `goldLabel`."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())


def is_usual(name: str) -> bool:
    """Whether a column may well be called so."""
    plain = name.strip().lower()
    pairs = {own for pair in PAIRS for own in pair}
    return plain in TEXTS | LABELS | _OTHERS | pairs


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    return _NUMBER.fullmatch(text.strip()) is not None


def repeats(values: Sequence[str]) -> bool:
    """Whether values look like labels: short ones, each there twice in the mean or more often."""
    filled = [value for value in values if value]
    different = set(filled)
    if not filled or len(different) > len(filled) / 2:
        return False
    return sum(len(value.split()) for value in different) <= _SHORT * len(different)


def shown(value: object, most: int = 60) -> str:
    """Return a value on one line for a message: without signs that a terminal obeys, cut."""
    text = "".join(sign if sign.isprintable() else "?" for sign in str(value))
    return text if len(text) <= most else f"{text[: most - 3]}..."
