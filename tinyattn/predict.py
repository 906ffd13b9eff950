"""Use a saved adapter: labels and probabilities for new rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from scipy.special import softmax

from tinyattn.batches import Batches
from tinyattn.checkpoint import AdapterCard, read_card
from tinyattn.errors import AdapterError
from tinyattn.model import AdaptedModel
from tinyattn.passes import outputs_of
from tinyattn.tasks import Task
from tinyattn.tasks.rows import check_rows
from tinyattn.tasks.tokens import Split, tokenise
from tinyattn.workshop import Workshop

NAME = "used"  # of the adapter in its AdaptedModel


class Predictor:
    """An adapter on its PLM, ready for rows of text.

    Args:
        folder: adapter folder; its PLM is found by the name it records.
        workshop: where PLMs are kept warm; None: one of its own.
        plm: name or folder of the PLM where it is not found under the recorded name; it must be
            the same PLM, which its fingerprint proves.

    Raises:
        AdapterError: the folder is damaged, has no classifier or task, or fits another PLM.
        PlmError: the PLM is not found.
    """

    def __init__(
        self, folder: Path, workshop: Workshop | None = None, plm: str | None = None
    ) -> None:
        self.card: AdapterCard = read_card(folder)
        if self.card.task is None or self.card.num_outputs is None:
            raise AdapterError(f"{folder}: this adapter has no classifier, so it predicts nothing")
        self.task = Task(**self.card.task.model_dump(exclude={"max_length"}))
        workshop = workshop or Workshop()
        self.plm = workshop.plm(plm or self.card.plm.name, self.card.plm.precision)
        self.device = workshop.device
        self.model = AdaptedModel(self.plm.model, self.card.adapter.placement)
        try:
            self.model.load(folder, self.plm, NAME)
        except BaseException:
            self.model.detach()
            raise

    def split(self, rows: datasets.Dataset) -> Split:
        """Tokenise checked rows of text (`tinyattn.data.read_rows` reads and checks a file)."""
        assert self.card.task is not None
        length = self.card.task.max_length
        return tokenise(rows, self.task, self.plm.tokenizer, length, name="predict")

    def outputs(self, split: Split) -> np.ndarray:
        """Logits, or the regression's score, [N, num_outputs]."""
        return outputs_of(self.model, NAME, Batches(split, self.plm.tokenizer), self.device)[0]

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return `{"label", "probabilities"}` for each row, `{"score"}` in a regression task.

        Args:
            rows: mappings that hold the task's text columns.

        Raises:
            TaskError: a text column is missing or holds no text.
        """
        if not rows:
            return []
        table = datasets.Dataset.from_list([dict(row) for row in rows])
        return self.predict_split(self.split(check_rows(table, self.task, "rows", labelled=False)))

    def predict_split(self, split: Split) -> list[dict[str, Any]]:
        """`predict` for rows that are tokenised already."""
        outputs = self.outputs(split)
        if self.task.labels is None:
            return [{"score": float(score)} for score in outputs[:, 0]]
        labels = self.task.labels
        return [
            {
                "label": labels[int(row.argmax())],
                "probabilities": dict(zip(labels, row.astype(float).tolist(), strict=True)),
            }
            for row in softmax(outputs.astype(np.float64), axis=1)
        ]

    def close(self) -> None:
        """Give the PLM back as it was."""
        self.model.detach()


def load_predictor(folder: Path, plm: str | None = None) -> Predictor:
    """Load an adapter folder together with the PLM it names."""
    return Predictor(folder, plm=plm)
