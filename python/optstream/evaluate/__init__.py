"""How far releases are from the data: errors over many trials, with confidence intervals, in parallel.

    from optstream import Guarantee, baselines, evaluate

    guarantee = Guarantee(epsilon=1.0, w=48)
    mechanisms = {
        "Laplace": baselines.Laplace(guarantee, bounds=(0, 40_000)),
        "BA": baselines.BudgetAbsorption(guarantee, bounds=(0, 40_000)),
    }
    print(evaluate.compare(mechanisms, {"taxi": passengers}, trials=30).to_markdown())

What is computed here depends on the private data and is not private: it is for experiments on data that may be seen.
"""

from optstream.evaluate.comparison import Comparison, Evaluation
from optstream.evaluate.errors import (
    consistency_error,
    feature_error,
    level_errors,
    period_errors,
    point_error,
)
from optstream.evaluate.forecast import Forecast, arma_forecast
from optstream.evaluate.mean import Mean
from optstream.evaluate.trials import compare, evaluate

__all__ = [
    "Comparison",
    "Evaluation",
    "Forecast",
    "Mean",
    "arma_forecast",
    "compare",
    "consistency_error",
    "evaluate",
    "feature_error",
    "level_errors",
    "period_errors",
    "point_error",
]
