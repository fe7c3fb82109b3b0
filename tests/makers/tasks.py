"""Write a folder of lm-eval tasks on local files of a few lines."""

import json
from collections.abc import Callable
from pathlib import Path

ANSWERS = ["return", "import", "class of"]

_CHOICE = """\
task: {name}
{tag}dataset_path: json
dataset_kwargs:
  data_files: {{test: {name}.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{answers}}}}"
doc_to_target: right
metric_list:
  - metric: acc
  - metric: acc_norm
"""
_WRITTEN = """\
task: written
dataset_path: json
dataset_kwargs:
  data_files: {test: written.jsonl}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answers[0]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 4, do_sample: false}
metric_list:
  - metric: exact_match
"""
_GROUP = """\
group: both
task: [first, second]
aggregate_metric_list:
  - {metric: acc, weight_by_size: true}
"""


def question(number: int) -> str:
    """Return a question."""
    return f"def f{number}(x):\n    "


def write(folder: Path, examples: int = 12, right: Callable[[int], int] = lambda number: number % 3) -> Path:
    """Write tasks of several kinds, whose right answers are told by the numbers of the questions.

    `first` and `second` are multiple choice, with half as many examples each, and form the group `both`. `written` is
    generation. The data of `lost` is on the Hub, and that of `broken` does not exist.
    """
    folder.mkdir()
    for name, count in (("first", examples), ("second", examples // 2), ("written", 2)):
        rows = [{"question": question(i), "answers": ANSWERS, "right": right(i)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("first", "second", "broken"):
        (folder / f"{name}.yaml").write_text(_CHOICE.format(name=name, tag=""))
    (folder / "written.yaml").write_text(_WRITTEN)
    (folder / "both.yaml").write_text(_GROUP)
    lost = _CHOICE.format(name="lost", tag="").replace("dataset_path: json", "dataset_path: nobody/nothing")
    (folder / "lost.yaml").write_text(lost)
    return folder
