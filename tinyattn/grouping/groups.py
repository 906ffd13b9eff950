"""Groups of similar rows: rows with the same or nearly the same text belong together.

Rows of a group go to the same side of a carve, and are swapped together in a paired test. Two texts
are similar, ignoring case and punctuation, if

    one contains the other word for word, and that has at least 3 words (5 in tasks over pairs),
    both share 8 words in a row,
    both have the same words in any order, or
    both have 6 words or more and differ in one: replaced, moved, left out or added.

Rows with similar texts are in one group, and so are rows linked through other rows. Text that is in
more rows than any carve takes links no rows: shared runs of 8 words (a prompt, a footer) are
removed from all texts first, and a shared whole text (a stock question) is not searched for. If the
rest still links more rows than any carve takes, closer similarity decides: see `group_rows`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

PHRASE, PHRASE_OF_PAIR = 3, 5
"""Words of the shortest text that is searched for within others. Without a minimum all rows of
SST-2 would be one group; in pairs, short answers (*I don't know.*) would link premises."""
RUN = 8
"""Words in a row that two texts share because one was made from the other, not by chance."""
_LEAST_BUT_ONE = 6
_MOST_WORDS = 512
"""Words of a text that are compared, from its start: about what long PLMs read."""
# Scripts that put no space between words: each sign counts as one.
_SIGN = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_SIGN}]|[^\W{_SIGN}]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # any odd number

# Unicode's Default_Ignorable_Code_Point: soft hyphens, joiners, marks of direction and the like.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)

Links = tuple[np.ndarray, np.ndarray]
"""Two arrays of text numbers; the i-th texts of both are similar."""


@dataclass(frozen=True)
class Groups:
    """The groups of the rows of one split."""

    numbers: np.ndarray
    """[N] int64: rows with the same number form a group."""
    loose: np.ndarray
    """[N] bool: rows that are similar to a row outside their group."""


def group_rows(columns: Sequence[Sequence[str]], largest: int) -> Groups:
    """Group the rows of one split by their texts.

    A group of more than `largest` rows is split into rows with the same words in the column that
    repeats least (of premises and stock hypotheses, the premises); if those are still too many,
    into identical rows, and then into single rows. Rows of a split group are loose, and so is a row
    whose text is too short to be searched for but stands within another one.

    Args:
        columns: one sequence of N texts, or two for pairs.
        largest: most rows of a group.
    """
    largest = max(largest, 1)  # of fewer rows than any can be carved from, none is like another
    number: dict[str, int] = {}
    rows = np.array(
        [[number.setdefault(text, len(number)) for text in texts] for texts in columns], np.int64
    )
    held = np.bincount(rows.ravel(), minlength=len(number))  # number of rows that hold each text
    texts = _Texts.of(list(number))
    endings = _Endings(texts)
    stock = endings.stock_words(held, largest)
    if stock.any():
        texts = texts.without(stock)
        endings = _Endings(texts)
    phrase = PHRASE if len(columns) == 1 else PHRASE_OF_PAIR
    same = _first_of(texts.bags)
    standing, short = _verbatim(texts, endings, phrase, endings.common(held, largest))
    alike = _components(len(number), standing, (np.arange(len(same)), same), _but_one(texts))
    worded = (texts.lengths > 0) & (np.bincount(same, held)[same] <= largest)
    identical = np.unique(rows, axis=1, return_inverse=True)[1].ravel()
    levels = [
        _linked([np.where(worded, alike, -1)[column] for column in rows], identical),
        _linked([_steadiest(np.where(worded, same, -1), rows)], identical),
        identical,
        np.arange(len(identical)),
    ]
    numbers, loose = _no_larger(levels, largest)
    if len(columns) == 1:
        loose |= short[rows[0]]
    return Groups(numbers, loose)


class _Texts:
    """Texts as numbers of words, one text after the other, each followed by a 0.

    Attributes:
        words: [T] number of each word, from 1 on; 0 ends a text.
        starts: [texts] place of each text's first word in `words`.
        lengths: [texts] words.
        owner: [T] the text that each word belongs to.
        hashes: [T] a random number for each word, 0 for the ends.
        bags: [texts] a hash that is equal for texts with the same words in any order.
    """

    def __init__(self, words: np.ndarray) -> None:
        self.words = words
        self.ends = np.flatnonzero(words == 0)
        self.starts = np.concatenate([[0], self.ends[:-1] + 1])
        self.lengths = self.ends - self.starts
        self.owner = np.repeat(np.arange(len(self.ends)), self.lengths + 1)
        draws = np.random.RandomState(0).randint(0, 2**64, size=words.max() + 1, dtype=np.uint64)
        draws[0] = 0
        self.hashes = draws[self.words]
        self.bags = np.add.reduceat(self.hashes, self.starts)

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Texts:
        """Number the words of texts in the order of their first occurrence."""
        vocabulary: dict[str, int] = {}
        words: list[int] = []
        for text in texts:
            own = words_of(text)[:_MOST_WORDS]
            words += [vocabulary.setdefault(word, len(vocabulary) + 1) for word in own]
            words.append(0)
        return cls(np.array(words, np.int64))

    def without(self, gone: np.ndarray) -> _Texts:
        """Return the texts without the words marked in `gone`, [T] bool."""
        return _Texts(self.words[~gone])


def words_of(text: str) -> list[str]:
    """Return a text's words without case and punctuation; without any words, its other signs.

    They are the same for all ways to write a text in Unicode (NFKC_Casefold in section 3.13 of its
    standard).
    """
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    plain = unicodedata.normalize("NFKC", visible.casefold())  # folding takes letters apart
    return _WORD.findall(plain) or plain.split()


def row_words(texts: Iterable[str]) -> str:
    """Return a row's words: equal for rows that differ in case, punctuation or white space only."""
    return "\0".join(" ".join(words_of(text)) for text in texts).strip("\0")


class _Endings:
    """A suffix array of texts (Manber and Myers 1993): their endings (suffixes), sorted.

    Endings that begin with the same words are neighbours.

    Attributes:
        order: [T] where in `words` each ending begins.
        shared: [T - 1] number of first words that each ending shares with the next one.
        whole: [T] whether the ending is a whole text; of equal endings, whole texts come first.
        lengths: [T] words of each ending.
        owner: [T] the text of each ending.
    """

    def __init__(self, texts: _Texts) -> None:
        whole = np.zeros(len(texts.words), bool)
        whole[texts.starts] = texts.lengths > 0
        self.order = np.lexsort((~whole, _ranks(texts)))
        self.shared = _shared(texts, self.order)
        self.whole = whole[self.order]
        self.owner = texts.owner[self.order]
        self.lengths = texts.ends[self.owner] - self.order

    def stock_words(self, held: np.ndarray, most: int) -> np.ndarray:
        """Mark words, [T] bool, that are in a run of RUN words shared by more than `most` rows."""
        edges = np.zeros(len(self.order) + 1, np.int64)
        first = self.order[self._begin_alike(RUN, held, most)]
        edges[first] += 1
        edges[first + RUN] -= 1
        return np.cumsum(edges)[:-1] > 0

    def common(self, held: np.ndarray, most: int) -> np.ndarray:
        """Mark endings, [T] bool, that are a whole text contained in more than `most` rows.

        Runs of RUN words that many rows share were removed before, so these texts are short.
        """
        found = np.zeros(len(self.order), bool)
        for length in range(1, RUN):
            found |= self.whole & (self.lengths == length) & self._begin_alike(length, held, most)
        return found

    def _begin_alike(self, words: int, held: np.ndarray, most: int) -> np.ndarray:
        """Mark endings, [T] bool, whose first `words` words are in more than `most` rows."""
        number = np.concatenate([[0], np.cumsum(self.shared < words)])
        long = self.lengths >= words
        many = long & (np.bincount(number, held[self.owner])[number] > most)
        # A text that repeats itself counts once.
        pairs = np.unique(number[many] * len(held) + self.owner[many])
        rows = np.bincount(pairs // len(held), held[pairs % len(held)], number[-1] + 1)
        return long & (rows[number] > most)


def _verbatim(
    texts: _Texts, endings: _Endings, phrase: int, common: np.ndarray
) -> tuple[Links, np.ndarray]:
    """Link texts that contain one another or share a run of words.

    Returns:
        The links, and [texts] bool: texts contained in another one but not linked to it, since
        they are shorter than `phrase` or in `common`.
    """
    shared, whole, lengths, owner = endings.shared, endings.whole, endings.lengths, endings.owner
    wanted = whole & (lengths >= phrase) & ~common
    linked = shared >= RUN
    looked_for = 0  # words of the shortest whole text that the endings here begin with
    for i, (alike, is_wanted, length) in enumerate(
        zip([0, *shared.tolist()], wanted.tolist(), lengths.tolist(), strict=True)
    ):
        if alike < looked_for:
            looked_for = 0
        if looked_for:
            linked[i - 1] = True
        elif is_wanted:
            looked_for = length
    at = np.flatnonzero(linked)
    stands = whole[:-1] & ~wanted[:-1] & (shared >= lengths[:-1])
    short = np.zeros(len(texts.starts), bool)
    short[owner[:-1][stands]] = True
    same = _first_of(texts.bags)  # "Good." and "good!" are two texts, and stand within as one
    return (owner[at], owner[at + 1]), short | np.isin(same, same[short])


def _ranks(texts: _Texts) -> np.ndarray:
    """Return the rank of each ending among all, [T], by prefix doubling."""
    ranks, width = texts.words, 1
    left = texts.ends[texts.owner] - np.arange(len(ranks))
    while width < texts.lengths.max(initial=0):
        later = np.zeros_like(ranks)
        inside = np.flatnonzero(left > width)
        later[inside] = ranks[inside + width]
        ranks = np.unique(ranks * (ranks.max() + 1) + later, return_inverse=True)[1]
        width *= 2
    return ranks


def _shared(texts: _Texts, order: np.ndarray) -> np.ndarray:
    """Return the number of first words that each ending shares with the next one, [T - 1]."""
    found = np.zeros(len(order) - 1, np.int64)
    equal, depth = np.arange(len(found)), 0
    while len(equal):
        first = texts.words[order[equal] + depth]
        equal = equal[(first > 0) & (first == texts.words[order[equal + 1] + depth])]
        depth += 1
        found[equal] = depth
    return found


def _but_one(texts: _Texts) -> Links:
    """Link texts that are equal after removing one word from one or from both."""
    place = np.arange(len(texts.words)) - texts.starts[texts.owner]
    powers = np.cumprod(np.full(place.max(initial=0) + 1, _BASE))
    here = np.cumsum(texts.hashes * powers[place])
    moved = np.cumsum(texts.hashes * powers[np.maximum(place - 1, 0)])
    start, end = texts.starts[texts.owner], texts.ends[texts.owner]
    before = np.where(place > 0, here[np.maximum(np.arange(len(here)) - 1, 0)], 0)
    before = before - np.where((place > 0) & (start > 0), here[np.maximum(start - 1, 0)], 0)
    without = before + moved[end] - moved  # at the 0 that ends a text: the whole text
    kept = np.flatnonzero(
        (texts.lengths[texts.owner] >= _LEAST_BUT_ONE)
        | ((place == texts.lengths[texts.owner]) & (place == _LEAST_BUT_ONE - 1))
    )
    owner = texts.owner[kept]
    return owner, owner[_first_of(without[kept])]


def _first_of(keys: np.ndarray) -> np.ndarray:
    """Return where each key occurs first, [N]."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first[inverse]


def _components(size: int, *links: Links) -> np.ndarray:
    ends = [np.concatenate(side) for side in zip(*links, strict=True)]
    graph = coo_array((np.ones(len(ends[0]), np.int8), tuple(ends)), shape=(size, size))
    return connected_components(graph, directed=False)[1].astype(np.int64)


def _linked(columns: Sequence[np.ndarray], identical: np.ndarray) -> np.ndarray:
    """Group rows that are identical or have the same number in any column (-1: no number)."""
    size = len(identical)
    links = [(np.arange(size), size + identical)]
    for column in columns:
        rows = np.flatnonzero(column >= 0)
        links.append((rows, 2 * size + column[rows]))
    largest = max(int(column.max(initial=0)) for column in columns)
    return _components(2 * size + largest + 1, *links)[:size]


def _steadiest(numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the column that repeats least, as `numbers` of its texts: by its commonest text."""
    columns = [numbers[column] for column in rows]
    return min(columns, key=lambda column: np.bincount(column[column >= 0], minlength=1).max())


def _no_larger(levels: Sequence[np.ndarray], largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's group at the first level where that group has at most `largest` rows."""
    numbers, *finer = levels
    loose = np.zeros(len(numbers), bool)
    for level in finer:
        large = np.bincount(numbers)[numbers] > largest
        loose |= large
        numbers = np.where(large, numbers.max(initial=0) + 1 + level, numbers)
        numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers, loose
