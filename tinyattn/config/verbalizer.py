"""VerbalizerConfig: what a PLM's own head scores, such as the labels' words, and where."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tinyattn.config.schema import StrictModel

MOST_EXAMPLES = 2**17
"""Most characters of all examples, which stand before each row and in an adapter's card."""
MOST_TOKENS = 16
"""Most tokens of a word."""

Word = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=MOST_TOKENS)
]


class VerbalizerConfig(StrictModel):
    """How a PLM's own head answers a row: for the labels of a task, or for a text."""

    places: Literal["mask", "end", "targets", "text"]
    """Where words are scored. mask: at the [MASK]s of a row, by a masked LM; end: behind a row's
    last token, by a causal LM whose words are single tokens; targets: by a causal LM as the last
    tokens of a row, which is there once for each word. text: there are no words; a causal LM scores
    the last tokens of a row as they are, which is how it learns to generate them."""
    words: tuple[Annotated[tuple[Word, ...], Field(min_length=1)], ...] = ()
    """For each label its words, each as token ids."""

    @property
    def num_outputs(self) -> int:
        """Scores of a row: one a label, or one of its text."""
        return len(self.words) or 1

    @property
    def num_masks(self) -> int:
        """[MASK]s of each row: as many as the longest word has tokens."""
        return max(len(word) for words in self.words for word in words)

    @property
    def all_words(self) -> list[Word]:
        """The words of all labels, in their order."""
        return [word for words in self.words for word in words]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if (self.places == "text") == bool(self.words):
            raise ValueError("words: needed are those of each label, and none with places text")
        if len(set(self.all_words)) < len(self.all_words):
            raise ValueError("words: each stands for one label, and once")
        if self.places == "end" and self.num_masks > 1:
            raise ValueError("words: of one token each where they are scored at the end of a row")
        return self
