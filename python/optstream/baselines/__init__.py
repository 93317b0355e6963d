"""The mechanisms that OptStream is compared with, each with its guarantee, statement and exact noise.

    from optstream import Guarantee, baselines

    mechanism = baselines.BudgetAbsorption(Guarantee(epsilon=1.0, w=48), bounds=(0, 40_000))
    print(mechanism.statement)
    release = mechanism.release(passengers)

All but :class:`Fourier` also take one step after another: ``mechanism.steps().push(value)`` returns the released value.
Every one of them keeps to epsilon in any ``w`` consecutive steps; how is said under *Guarantee*.
"""

from optstream.baselines.baseline import Baseline, PrivateSeries
from optstream.baselines.binary_tree import BinaryTree
from optstream.baselines.budget_absorption import BudgetAbsorption
from optstream.baselines.budget_distribution import BudgetDistribution
from optstream.baselines.each_node import EachNode
from optstream.baselines.fast import Fast
from optstream.baselines.fourier import Fourier
from optstream.baselines.laplace import Laplace
from optstream.baselines.online import Online, Steps
from optstream.baselines.pegasus import PeGaSus
from optstream.baselines.pid import Gains
from optstream.baselines.rescue_dp import RescueDP
from optstream.baselines.sample import Sample

__all__ = [
    "Baseline",
    "BinaryTree",
    "BudgetAbsorption",
    "BudgetDistribution",
    "EachNode",
    "Fast",
    "Fourier",
    "Gains",
    "Laplace",
    "Online",
    "PeGaSus",
    "PrivateSeries",
    "RescueDP",
    "Sample",
    "Steps",
]
