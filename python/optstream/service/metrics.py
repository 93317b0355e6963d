"""Metrics for Prometheus: what an operator watches, and nothing private.

Counts of observations and which steps are there are public; values, and what clients sent, are not, and are not here.
Labels are names of the settings and of the code, never what a client has sent.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["Metrics"]

BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """The counters of one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        stream = ["stream"]
        self.policy = Gauge("optstream_policy_epsilon", "Epsilon of every window.", stream, registry=registry)
        self.left = Gauge(
            "optstream_budget_left_epsilon", "Epsilon left in the worst window.", stream, registry=registry
        )
        self.pool_left = Gauge(
            "optstream_pool_left_epsilon",
            "Epsilon left to all members of the pool in the worst window that meets the stream's last period.",
            ["pool", "stream"],
            registry=registry,
        )
        self.open_steps = Gauge("optstream_open_steps", "Steps of the open period.", stream, registry=registry)
        self.period = Gauge("optstream_last_period", "Number of the last closed period.", stream, registry=registry)
        self.lag = Gauge(
            "optstream_lag_seconds", "Time since the end of the last closed period.", stream, registry=registry
        )
        self.observations = Counter("optstream_observations", "Observations taken.", stream, registry=registry)
        self.releases = Counter("optstream_releases", "Periods in answers to writers.", stream, registry=registry)
        self.refusals = Counter("optstream_refusals", "Requests refused.", ["route", "type"], registry=registry)
        self.shed = Counter("optstream_shed", "Connections ended early.", ["reason"], registry=registry)
        self.latency = Histogram(
            "optstream_request_seconds", "Time to answer.", ["route"], registry=registry, buckets=BUCKETS
        )
        self.ready = Gauge("optstream_ready", "Whether ledger, identity and witness are well.", registry=registry)
        self.followers = Gauge("optstream_followers", "Clients that follow streams.", registry=registry)

    def text(self) -> bytes:
        """Return all metrics in the text format."""
        return generate_latest(self.registry)
