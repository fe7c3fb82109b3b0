"""Scores of tasks: what is said of them, and limits on what they may lose."""

import math
import statistics

import pytest

from squeeze.engine.report import Report
from squeeze.engine.tasks import TaskScore, accuracies
from squeeze.errors import QualityError

SCORE = TaskScore("colours", "acc", 0.6, 50, 0.07)


def test_a_score_is_compared_with_the_originals():
    differences = [1.0, 0.0, -1.0, 1.0, 0.0, 0.0]
    both = SCORE.with_base(TaskScore("colours", "acc", 0.75, 50, 0.06), differences)
    assert both.drop == pytest.approx(15)
    assert both.drop_stderr == pytest.approx(statistics.stdev(differences) / math.sqrt(6))
    assert str(both) == "acc 0.6000 ± 0.0700, before 0.7500 ± 0.0600 (the difference 0.1500 ± 0.3073)"
    assert str(SCORE) == "acc 0.6000 ± 0.0700" and SCORE.drop is None
    assert SCORE.with_base(both, []).drop_stderr is None
    assert TaskScore.from_json(both.as_json()) == both


def test_a_task_is_judged_by_one_metric():
    others = [TaskScore("words", name, 0.5, 10) for name in ("word_perplexity", "exact_match,strict", "exact_match")]
    scores = [SCORE, TaskScore("colours", "acc_norm", 0.7, 50), *others]
    assert [(one.task, one.metric) for one in accuracies(scores)] == [
        ("colours", "acc_norm"),
        ("words", "exact_match,strict"),
    ]


def test_a_fall_of_accuracy_beyond_the_limit_is_refused():
    report = Report(
        "model", "small", "gptq", "dense", {}, tasks=[SCORE.with_base(TaskScore("colours", "acc", 0.75, 50), [])]
    )
    report.check(max_task_drop=15.1)
    with pytest.raises(QualityError, match=r"small: acc of colours fell by 15.00 points: the limit is 14.9"):
        report.check(max_task_drop=14.9)
    assert ("colours", "acc 0.6000 ± 0.0700, before 0.7500 (the difference 0.1500)") in report._totals()
    assert Report.from_json(report.as_json()) == report
    report.tasks = [TaskScore("text", "word_perplexity", 9.0, 10, base=8.0)]
    with pytest.raises(QualityError, match="small: no task measures acc_norm, acc or exact_match"):
        report.check(max_task_drop=1)
