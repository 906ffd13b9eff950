"""Few-shot tasks: FewGLUE's CB and RTE of 32 training rows, and 16-shot tasks of GLUE.

Their rows are asked as cloze questions (`Pattern`). FewGLUE's patterns are those of PET (Schick &
Schütze, NAACL 2021) and that of the tiny-attention paper (its appendix B.1), which is the first;
those of the 16-shot tasks are the manual prompts of Gao et al. (ACL 2021, table 1), who also drew
16 rows a class to train on and as many to select on.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinyattn.tasks.base import Pattern, Splits, Task
from tinyattn.tasks.shipped.glue import GLUE

SHOT_SEEDS = (13, 21, 42)
"""Seeds of the draws of 16 rows a class; the first has the short name."""
_ANSWERS = {"entailment": ("Yes",), "not_entailment": ("No",)}
_TRUTH = {"entailment": ("true",), "not_entailment": ("false",)}


def _entailment(answers: Mapping[str, tuple[str, ...]], last: Pattern) -> tuple[Pattern, ...]:
    """Return the paper's pattern and PET's, of premise and hypothesis."""
    cloze = {
        "paper": ("{hypothesis:bare}?[MASK].{premise}",),
        "pet-0": ('"{hypothesis:bare}" ?', '[MASK], "{premise}"'),
        "pet-1": ("{hypothesis:bare}?", "[MASK], {premise}"),
        "pet-2": ('"{hypothesis:bare}" ?', '[MASK]. "{premise}"'),
        "pet-3": ("{hypothesis:bare}?", "[MASK]. {premise}"),
    }
    return (*(Pattern(name, texts, answers) for name, texts in cloze.items()), last)


FEWGLUE = (
    Task(
        name="fewglue-cb",
        text_columns=("premise", "hypothesis"),
        labels=("entailment", "contradiction", "neutral"),
        score_range=None,
        metrics=("accuracy", "f1_macro"),
        splits=Splits(select="dev32"),
        patterns=_entailment(
            {"entailment": ("Yes",), "contradiction": ("No",), "neutral": ("Maybe",)},
            Pattern(
                "pet-4",
                ("{premise} question: {hypothesis} true, false or neither? answer: [MASK]",),
                {"entailment": ("true",), "contradiction": ("false",), "neutral": ("neither",)},
            ),
        ),
        paper={"albert-xxlarge-v2": {"1H": 88.57}},
        place="fewglue/cb",
    ),
    Task(
        name="fewglue-rte",
        text_columns=("premise", "hypothesis"),
        labels=("entailment", "not_entailment"),
        score_range=None,
        metrics=("accuracy",),
        splits=Splits(select="dev32"),
        patterns=_entailment(
            _ANSWERS,
            Pattern(
                "pet-4",
                ("{premise} question: {hypothesis} True or False? answer: [MASK]",),
                _TRUTH,
            ),
        ),
        paper={"albert-xxlarge-v2": {"1H": 68.38}},
        place="fewglue/rte",
    ),
)

_PROMPTS: Mapping[str, tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]] = {
    "sst2": (
        ("{sentence} It was [MASK].",),
        {"negative": ("terrible",), "positive": ("great",)},
    ),
    "cola": (
        ("{sentence} This is [MASK].",),
        {"unacceptable": ("incorrect",), "acceptable": ("correct",)},
    ),
    "mrpc": (
        ("{sentence1} [MASK], {sentence2}",),
        {"not_equivalent": ("No",), "equivalent": ("Yes",)},
    ),
    "qqp": (
        ("{question1} [MASK], {question2}",),
        {"not_duplicate": ("No",), "duplicate": ("Yes",)},
    ),
    "rte": (("{sentence1}? [MASK], {sentence2}",), _ANSWERS),
}


def _shots(name: str, seed: int) -> Task:
    """Return the 16-shot task of a GLUE task for one draw; GLUE's dev rows judge."""
    glue, (texts, words) = GLUE[name], _PROMPTS[name]
    here = f"kshot16/{name}/seed{seed}"
    return Task(
        name=f"kshot16-{name}" + ("" if seed == SHOT_SEEDS[0] else f"-{seed}"),
        text_columns=glue.text_columns,
        labels=glue.labels,
        score_range=None,
        metrics=glue.metrics,
        splits=Splits(
            train=f"{here}/train",
            validation=f"glue/{name}/validation",
            test=f"glue/{name}/test",
            select=f"{here}/dev",
        ),
        patterns=(Pattern("manual", texts, words),),
        place="",
    )


FEW_SHOT = {
    task.name: task for task in (*FEWGLUE, *(_shots(n, s) for n in _PROMPTS for s in SHOT_SEEDS))
}
"""By name; `fewglue/rte` may be written for `fewglue-rte`."""
