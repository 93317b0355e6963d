"""Events to series: equal to a count by hand in rationals, bounded for every entity, and the same in whatever order."""

from __future__ import annotations

import gzip
import itertools
import math
import sys
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given, settings

from optstream._core import default_grid
from optstream.data import events as module
from optstream.data.events import aggregate
from optstream.errors import DataError, ParameterError, ParameterTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

Event = tuple[str, int, float]

START = datetime(2016, 1, 1)  # noqa: DTZ001  (times without a zone are a case of their own)
PARIS = ZoneInfo("Europe/Paris")
STEPS = 4
NAMES: Any = {"entity": "home", "time": "at"}
DAY: Any = NAMES | {"step": "6h", "start": START, "stop": START + timedelta(days=1)}
SUM: Any = DAY | {"value": "kwh", "alpha": 2.0}

# Values around the ties of the grid and around the bounds, and some that are large, tiny and huge.
values = st.one_of(
    st.floats(-5, 5),
    st.integers(-20, 20).map(lambda units: (units + 0.5) / 1024),
    st.sampled_from([0.1, -0.0, 5e-324, -5e-324, 1e308, -1e308, 2.0**40, -(2.0**31), math.nextafter(0.5, 0) / 1024]),
)
event_lists = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, STEPS - 1), values), max_size=40)
bounds = st.sampled_from(
    [(2.0, None), (0.3, None), (0.3, (-0.1, 0.1)), (7.0, (1.5, 3.0)), (7.0, (-6.9, -1.1)), (1000.3, (-500.0, 500.1))]
)


def frame_of(events: Iterable[Event]) -> pl.DataFrame:
    """Events with step numbers."""
    return pl.DataFrame(list(events), schema={"home": pl.String, "at": pl.Int64, "kwh": pl.Float64}, orient="row")


def totals(events: Iterable[Event], alpha: float, clip: tuple[float, float] | None) -> list[float]:
    made = aggregate(frame_of(events), **NAMES, value="kwh", alpha=alpha, clip=clip, start=0, stop=STEPS)
    return made["kwh"].to_list()


def counts(events: Iterable[Event]) -> list[int]:
    return aggregate(frame_of(events), **NAMES, start=0, stop=STEPS)["count"].to_list()


def by_hand(events: Iterable[Event], alpha: float, clip: tuple[float, float] | None) -> list[Fraction]:
    """The definition, in rationals."""
    lower, upper = clip or (0.0, alpha)
    grid = Fraction(default_grid(alpha))
    contributions: dict[tuple[int, str], int] = defaultdict(int)
    for entity, step, value in events:
        units = math.floor(Fraction(value) / grid + Fraction(1, 2))
        contributions[step, entity] += min(max(units, -(2**40)), 2**40)
    sums = [Fraction(0)] * STEPS
    for (step, _), units in contributions.items():
        sums[step] += grid * min(max(units, math.ceil(Fraction(lower) / grid)), math.floor(Fraction(upper) / grid))
    return sums


def meters() -> pl.DataFrame:
    """A day of a few homes, with an event outside of it."""
    generator = np.random.default_rng(3)
    size = 200
    return pl.DataFrame(
        {
            "home": [f"{number:03}" for number in generator.integers(0, 20, size)],
            "at": [START + timedelta(seconds=int(at)) for at in generator.integers(0, 86_400, size - 1)]
            + [START + timedelta(days=1)],
            "kwh": generator.normal(0.5, 1, size),
        }
    ).with_columns(region=pl.col("home").str.slice(2).str.replace_many(list("0123456789"), list("nnnsssnnss")))


class TestDefinition:
    @settings(max_examples=150, deadline=None)
    @given(event_lists, bounds)
    @example([("a", 0, math.nextafter(0.5, 0) / 1024)], (1.0, None))
    def test_sums_equal_rationals_by_hand(
        self, events: list[Event], bound: tuple[float, tuple[float, float] | None]
    ) -> None:
        assert [Fraction(total) for total in totals(events, *bound)] == by_hand(events, *bound)

    @settings(max_examples=60, deadline=None)
    @given(event_lists)
    def test_distinct_entities_equal_sets(self, events: list[Event]) -> None:
        assert counts(events) == [len({entity for entity, at, _ in events if at == step}) for step in range(STEPS)]

    def test_rounding_by_adding_a_half_would_be_seen(self) -> None:
        below_half = math.nextafter(0.5, 0)
        assert math.floor(below_half + 0.5) == 1
        # An alpha of 1024 has a grid of 1.
        assert totals([("a", 0, below_half), ("a", 1, 0.5), ("a", 2, 1.5), ("a", 3, 2.5)], 1024, None) == [0, 1, 2, 3]

    def test_ties_go_up_below_zero_too(self) -> None:
        assert totals([("a", 0, -0.5), ("a", 1, -1.5), ("a", 2, -2.5), ("a", 3, -2.6)], 1024, (-512, 512)) == [
            0,
            -1,
            -2,
            -3,
        ]

    def test_a_given_grid_is_used(self) -> None:
        events = frame_of([("a", 0, 0.3), ("b", 0, 0.6), ("c", 1, 9.0)])
        made = aggregate(events, **NAMES, value="kwh", alpha=2.0, grid=0.5, start=0, stop=2)
        assert made["kwh"].to_list() == [1.0, 2.0]

    @pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt64, pl.Int64, pl.Float32])
    def test_all_numbers_are_values(self, dtype: Any) -> None:
        events = frame_of([("a", 0, 3), ("b", 0, 1), ("a", 1, 2)]).with_columns(pl.col("kwh").cast(dtype))
        made = aggregate(events, **NAMES, value="kwh", alpha=2.0, start=0, stop=2)
        assert made["kwh"].to_list() == [3.0, 2.0]

    def test_groups_are_columns_that_add_up(self) -> None:
        whole, parts = aggregate(meters(), **SUM), aggregate(meters(), **SUM, group="region")
        assert parts.columns == ["at", "n", "s"]
        assert (parts["n"] + parts["s"]).equals(whole["kwh"])
        distinct = aggregate(meters(), **DAY, group="region")
        assert (distinct["n"] + distinct["s"]).equals(aggregate(meters(), **DAY)["count"])
        north = aggregate(meters().filter(pl.col("region") == "n"), **SUM)
        assert parts["n"].equals(north["kwh"])


class TestBound:
    """The reason for this module: one entity moves one step by at most alpha, whatever it does."""

    @settings(max_examples=150, deadline=None)
    @given(event_lists, event_lists, bounds)
    def test_an_entity_moves_a_step_by_at_most_alpha(
        self, events: list[Event], other: list[Event], bound: tuple[float, tuple[float, float] | None]
    ) -> None:
        replaced = [event for event in events if event[0] != "a"] + [("a", at, value) for _, at, value in other]
        moved = [
            abs(Fraction(one) - Fraction(two))
            for one, two in zip(totals(events, *bound), totals(replaced, *bound), strict=True)
        ]
        assert max(moved) <= Fraction(bound[0])
        assert all(abs(one - two) <= 1 for one, two in zip(counts(events), counts(replaced), strict=True))

    @pytest.mark.parametrize("values", [[1e308] * 50, [-1e308] * 50, [2.0**40] * 7 + [-(2.0**40)] * 7, [0.7] * 1000])
    def test_huge_and_many_values_stay_within_alpha(self, values: list[float]) -> None:
        with_a = totals([("a", 0, value) for value in values] + [("b", 0, 1.0)], 0.3, (-0.1, 0.1))
        assert abs(Fraction(with_a[0]) - Fraction(totals([("b", 0, 1.0)], 0.3, (-0.1, 0.1))[0])) <= Fraction(0.3)

    def test_clipping_events_or_rounding_last_would_break_the_bound(self) -> None:
        events = [("a", 0, 0.3)] * 5
        grid, alpha = Fraction(default_grid(0.3)), Fraction(0.3)
        assert sum(min(Fraction(value), alpha) for _, _, value in events) > alpha
        assert math.floor(alpha / grid + Fraction(1, 2)) * grid > alpha
        assert 0 < Fraction(totals(events, 0.3, None)[0]) <= alpha

    def test_entities_are_grouped_by_themselves_and_not_by_a_hash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pl.Expr, "hash", lambda column, *_: column.is_null().cast(pl.UInt64))
        assert totals([("a", 0, 2.0), ("b", 0, 2.0), ("c", 1, 1.0)], 2.0, None) == [4.0, 1.0, 0.0, 0.0]
        assert counts([("a", 0, 2.0), ("b", 0, 2.0), ("c", 1, 1.0)]) == [2, 1, 0, 0]

    def test_zero_and_minus_zero_are_one_entity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events = pl.DataFrame({"home": [0.0, -0.0, 1.0], "at": [0, 0, 0], "kwh": [2.0, 2.0, 2.0]})
        for events_at_once in (10, 1):
            monkeypatch.setattr(module, "PASS_EVENTS", events_at_once)
            assert aggregate(events, **NAMES, start=0, stop=1)["count"].to_list() == [2]
            made = aggregate(events, **NAMES, value="kwh", alpha=2.0, start=0, stop=1)
            assert made["kwh"].to_list() == [4.0]


ZONES = ["x", "y", "z"]
trips = st.lists(st.tuples(st.integers(0, STEPS - 1), st.sampled_from(ZONES), st.floats(-3, 3)), max_size=12)


def by_zone(events: Iterable[tuple[str, int, str, float]], **more: Any) -> NDArray[np.float64]:
    schema = {"home": pl.String, "at": pl.Int64, "zone": pl.String, "kwh": pl.Float64}
    frame = pl.DataFrame(list(events), schema=schema, orient="row")
    made = aggregate(frame, **NAMES, group="zone", groups=ZONES, start=0, stop=STEPS, **more)
    return made.drop("at").to_numpy().astype(float)


class TestPeopleWhoMove:
    """Bounding (docs/privacy.md): a change of one entity's events moves their steps alone, by at most alpha in sum."""

    @settings(max_examples=150, deadline=None)
    @given(
        others=st.lists(
            st.tuples(st.sampled_from("bc"), st.integers(0, STEPS - 1), st.sampled_from(ZONES)), max_size=8
        ),
        mine=trips,
        window=trips,
        first=st.integers(0, STEPS - 1),
        most=st.integers(1, 4),
        change=st.sampled_from(["any", "presence"]),
        clip=st.sampled_from([None, (0.0, 1.0), (-1.0, 0.5), (0.5, 1.0), "count"]),
    )
    def test_a_change_in_a_window_stays_there_and_is_bounded(
        self, others: Any, mine: Any, window: Any, first: int, most: int, change: str, clip: Any
    ) -> None:
        steps = {first, (first + 1) % STEPS}
        fixed = [("b" + who, at, zone, 1.0) for who, at, zone in others]
        outside = [("a", *trip) for trip in mine if trip[0] not in steps]
        before = [("a", *trip) for trip in mine if trip[0] in steps]
        after = [] if change == "presence" else [("a", *trip) for trip in window if trip[0] in steps]
        alpha = 12.0
        more: dict[str, Any] = {"max_groups": most, "change": change, "alpha": alpha}
        if clip != "count":
            more |= {"value": "kwh", "clip": clip}
        moved = np.abs(by_zone(fixed + outside + before, **more) - by_zone(fixed + outside + after, **more)).sum(axis=1)
        size, width = (1.0, 1.0) if clip == "count" else (12.0, 12.0)
        if isinstance(clip, tuple):
            size, width = max(abs(clip[0]), abs(clip[1])), max(clip[1], 0) - min(clip[0], 0)
        kept = min(most, len(ZONES))
        shared = max(0, 2 * kept - len(ZONES))
        needed = kept * size if change == "presence" else shared * width + 2 * (kept - shared) * size
        for step in range(STEPS):
            assert moved[step] <= (min(alpha, needed) if step in steps else 0)

    @pytest.mark.parametrize(("change", "needed"), [("presence", 2), ("any", 3)])
    def test_too_small_an_alpha_is_refused_with_the_number_that_is_needed(self, change: str, needed: int) -> None:
        trip = [("a", 0, "x", 1.0)]
        with pytest.raises(ParameterError, match=f"must be at least {needed} for distinct entities"):
            by_zone(trip, max_groups=2, change=change, alpha=needed - 0.5)
        assert by_zone(trip, max_groups=2, change=change, alpha=needed)[0].tolist() == [1, 0, 0]
        with pytest.raises(ParameterError, match=f"moves a step by {needed}.0, more than alpha"):
            by_zone(trip, max_groups=2, change=change, alpha=needed - 0.5, value="kwh", clip=(0.0, 1.0))

    def test_the_bound_is_attained(self) -> None:
        everywhere = [("a", 0, zone, 1.0) for zone in ZONES]
        assert by_zone(everywhere, max_groups=2, alpha=3.0)[0].sum() == 2
        assert by_zone(everywhere, max_groups=3, alpha=3.0)[0].sum() == 3
        # Some entity counts in x alone when it is in all three, and some in another.
        kept = {
            tuple(by_zone([(f"e{n}", 0, zone, 1.0) for zone in ZONES], max_groups=1, alpha=2.0)[0]) for n in range(40)
        }
        assert len(kept) == 3

    def test_order_passes_and_types_of_names_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        generator = np.random.default_rng(3)
        frame = pl.DataFrame(
            {
                "home": generator.integers(0, 30, 600),
                "at": generator.integers(0, STEPS, 600),
                "zone": generator.choice(ZONES, 600),
                "kwh": generator.normal(0, 1, 600),
            }
        )
        options: Any = NAMES | {
            "group": "zone",
            "groups": ZONES,
            "start": 0,
            "stop": STEPS,
            "max_groups": 2,
            "alpha": 6.0,
        }
        whole = aggregate(frame, **options, value="kwh")
        assert aggregate(frame.sample(fraction=1.0, shuffle=True, seed=1), **options, value="kwh").equals(whole)
        assert aggregate(frame.with_columns(pl.col("home").cast(pl.String)), **options, value="kwh").equals(whole)
        monkeypatch.setattr(module, "PASS_EVENTS", 37)
        monkeypatch.setattr(module, "HASHED_ROWS", 5)
        assert aggregate(frame, **options, value="kwh").equals(whole)

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"max_groups": 0}, "max_groups is 0, but must be at least 1"),
            ({"max_groups": True}, "max_groups is of type bool"),
            ({"change": "some"}, "change is 'some', but must be 'any' or 'presence'"),
        ],
    )
    def test_parameters(self, more: dict[str, Any], message: str) -> None:
        with pytest.raises((ParameterError, ParameterTypeError), match=message):
            by_zone([("a", 0, "x", 1.0)], **more)
        with pytest.raises(ParameterError, match="must be None without the column of groups"):
            aggregate(frame_of([("a", 0, 1.0)]), **NAMES, start=0, stop=1, max_groups=2)


class TestOrder:
    def test_shuffles_and_chunks_change_no_bit(self) -> None:
        events = meters()
        whole = aggregate(events, **SUM)
        for seed in range(5):
            shuffled = events.sample(fraction=1.0, shuffle=True, seed=seed)
            chunked = pl.concat([shuffled[at : at + 7] for at in range(0, len(events), 7)], rechunk=False)
            assert aggregate(shuffled, **SUM).equals(whole)
            assert aggregate(chunked, **SUM).equals(whole)

    def test_adding_floats_would_depend_on_the_order(self) -> None:
        kwh = meters()["kwh"].to_list()
        assert len({sum(kwh[at:] + kwh[:at]) for at in range(len(kwh))}) > 1

    @pytest.mark.parametrize(
        ("value", "group", "steps"),
        [(None, None, 200_003), ("kwh", None, 200_003), (None, "region", 1000), ("kwh", "region", 1000)],
    )
    def test_passes_change_no_bit(
        self, monkeypatch: pytest.MonkeyPatch, value: str | None, group: str | None, steps: int
    ) -> None:
        generator = np.random.default_rng(5)
        size = 3_000_000
        at = generator.integers(0, steps, size)
        # A third of all events lie in one step, which is more than a pass holds.
        at[: size // 3] = 77
        entity = generator.integers(0, 50_000, size)
        columns = {"home": entity, "at": at, "kwh": generator.normal(0, 1, size), "region": entity % 3}
        events = pl.DataFrame(columns).sample(fraction=1.0, shuffle=True, seed=1)
        options: Any = NAMES | {"value": value, "group": group, "alpha": 2.0, "start": 10, "stop": steps - 10}
        once = aggregate(events, **options)
        plans: list[list[tuple[int, int, int, int]]] = []
        planned = module._passes

        def spy(*args: Any) -> list[tuple[int, int, int, int]]:
            plans.append(planned(*args))
            return plans[-1]

        monkeypatch.setattr(module, "_passes", spy)
        monkeypatch.setattr(module, "PASS_EVENTS", 200_000)
        assert aggregate(events, **options).equals(once)
        (plan,) = plans
        sizes = [np.count_nonzero((at - 10 >= begin) & (at - 10 < end)) / parts for begin, end, _, parts in plan]
        assert len(plan) >= 15
        assert max(sizes) <= 200_000
        assert {parts for *_, parts in plan} == {1, math.ceil(np.count_nonzero(at == 77) / 200_000)}


class TestForms:
    def test_frames_of_all_libraries(self) -> None:
        events, whole = meters(), aggregate(meters(), **SUM, group="region")
        forms = [events.lazy(), events.to_pandas(), events.to_arrow(), events.cast({"home": pl.Categorical})]
        for form in forms:
            made = aggregate(form, **SUM, group="region")
            assert made["n"].equals(whole["n"])
            assert made["s"].equals(whole["s"])
            assert made["at"].cast(pl.Datetime("us")).equals(whole["at"])

    @pytest.mark.parametrize("suffix", ["parquet", "pq", "csv", "csv.gz", "tsv"])
    @pytest.mark.parametrize("folder", ["plain", "with [brackets]"])
    def test_files(self, tmp_path: Path, suffix: str, folder: str) -> None:
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / f"events.{suffix}"
        if suffix in {"parquet", "pq"}:
            meters().write_parquet(path)
        elif suffix == "csv.gz":
            path.write_bytes(gzip.compress(meters().write_csv().encode()))
        else:
            meters().write_csv(path, separator="\t" if suffix == "tsv" else ",")
        assert aggregate(path, **SUM).equals(aggregate(meters(), **SUM))
        assert aggregate(str(path), **DAY, group="region").equals(aggregate(meters(), **DAY, group="region"))

    def test_a_pattern_of_files(self, tmp_path: Path) -> None:
        meters()[:90].write_parquet(tmp_path / "1.parquet")
        meters()[90:].write_parquet(tmp_path / "2.parquet")
        assert aggregate(tmp_path / "*.parquet", **SUM).equals(aggregate(meters(), **SUM))

    def test_names_in_csv_stay_names(self, tmp_path: Path) -> None:
        (tmp_path / "e.csv").write_text("home,at,kwh\n007,0,1\n7,0,1.5\n")
        assert aggregate(tmp_path / "e.csv", **NAMES)["count"].to_list() == [2]
        assert aggregate(tmp_path / "e.csv", **NAMES, value="kwh", alpha=2.0)["kwh"].to_list() == [2.5]

    def test_zoned_times_in_csv_are_utc(self, tmp_path: Path) -> None:
        (tmp_path / "e.csv").write_text("home,at\na,2016-01-01T00:30:00Z\nb,2016-01-01T03:30:00+02:00\n")
        made = aggregate(tmp_path / "e.csv", **NAMES, step="1h")
        assert made.rows() == [(datetime(2016, 1, 1, hour, tzinfo=UTC), 1) for hour in (0, 1)]

    def test_progress_stays_off_when_nobody_looks(self, capfd: pytest.CaptureFixture[str]) -> None:
        aggregate(meters(), **DAY)
        assert capfd.readouterr() == ("", "")


class TestTime:
    @pytest.mark.parametrize("step", ["6h", "360m", "5h3600s", timedelta(hours=6)])
    def test_ways_to_say_a_step(self, step: Any) -> None:
        assert aggregate(meters(), **DAY | {"step": step}).equals(aggregate(meters(), **DAY))

    @pytest.mark.parametrize("unit", ["ms", "us", "ns"])
    def test_units_of_time(self, unit: Any) -> None:
        made = aggregate(meters().cast({"at": pl.Datetime(unit)}), **SUM)
        assert made.schema["at"] == pl.Datetime(unit)
        assert made["kwh"].equals(aggregate(meters(), **SUM)["kwh"])

    @pytest.mark.parametrize("day", [START, date(2016, 1, 1)])
    def test_dates(self, day: date) -> None:
        events = pl.DataFrame({"home": ["a", "b"], "at": [date(2016, 1, 2), date(2016, 1, 4)]})
        made = aggregate(events, **NAMES, step="1d", start=day, stop=day + timedelta(days=4))
        assert made.rows() == [(date(2016, 1, 1 + at), at % 2) for at in range(4)]

    def test_step_numbers_of_any_width_and_sign(self) -> None:
        for dtype in (pl.Int8, pl.UInt8, pl.Int64):
            made = aggregate(frame_of([("a", 3, 1.0)]).cast({"at": dtype}), **NAMES, start=-1000, stop=1000)
            assert made.schema["at"] == pl.Int64
            assert made.filter(pl.col("count") > 0).rows() == [(3, 1)]
        assert aggregate(frame_of([("a", -(2**63), 1.0)]), **NAMES).rows() == [(-(2**63), 1)]

    def test_without_a_range_steps_count_from_the_epoch(self) -> None:
        moments = [datetime(1969, 12, 31, 23, 10), datetime(1970, 1, 1, 1, 59)]  # noqa: DTZ001
        made = aggregate(pl.DataFrame({"home": ["a", "b"], "at": moments}), **NAMES, step="1h")
        assert made["at"].dt.hour().to_list() == [23, 0, 1]
        assert made["count"].to_list() == [1, 0, 1]

    def test_start_is_the_origin_and_the_range_is_half_open(self) -> None:
        start = START + timedelta(minutes=7)
        moments = [start - timedelta(microseconds=1), start, start + timedelta(minutes=59), start + timedelta(hours=2)]
        events = pl.DataFrame({"home": list("abcd"), "at": moments})
        made = aggregate(events, **NAMES, step="1h", start=start, stop=start + timedelta(hours=2))
        assert made.rows() == [(start, 2), (start + timedelta(hours=1), 0)]
        assert aggregate(events, **NAMES, step="1h", start=start)["count"].to_list() == [2, 0, 1]

    @pytest.mark.parametrize(("day", "hours"), [(date(2016, 3, 27), 23), (date(2016, 10, 30), 25)])
    def test_summer_time_neither_drops_nor_repeats_a_step(self, day: date, hours: int) -> None:
        start = datetime(day.year, day.month, day.day, tzinfo=PARIS)
        stop = datetime(day.year, day.month, day.day + 1, tzinfo=PARIS)
        moments = [start.astimezone(UTC) + timedelta(minutes=30 * half, seconds=1) for half in range(2 * hours)]
        events = pl.DataFrame({"home": [str(number) for number in range(len(moments))], "at": moments})
        events = events.with_columns(pl.col("at").dt.convert_time_zone("Europe/Paris"))
        made = aggregate(events, **NAMES, step="1h", start=start, stop=stop)
        assert made.schema["at"] == pl.Datetime("us", "Europe/Paris")
        assert made["count"].to_list() == [2] * hours
        begins = [moment.astimezone(UTC) for moment in made["at"].to_list()]
        assert {after - before for before, after in itertools.pairwise(begins)} == {timedelta(hours=1)}
        assert begins[0] == start.astimezone(UTC)
        assert begins[-1] + timedelta(hours=1) == stop.astimezone(UTC)

    def test_nothing_happened(self, tmp_path: Path) -> None:
        empty = meters().clear()
        (tmp_path / "e.csv").write_text("home,at,kwh\n")
        forms: list[Any] = [empty, empty.to_pandas(), pd.DataFrame(columns=["home", "at", "kwh"]), tmp_path / "e.csv"]
        for form in forms:
            assert aggregate(form, **DAY)["count"].to_list() == [0] * 4
            assert aggregate(form, **SUM)["kwh"].to_list() == [0.0] * 4
        assert aggregate(tmp_path / "e.csv", **NAMES, start=0, stop=3).rows() == [(0, 0), (1, 0), (2, 0)]
        zoned = {"start": START.replace(tzinfo=PARIS), "stop": START.replace(day=2, tzinfo=PARIS)}
        assert aggregate(tmp_path / "e.csv", **DAY | zoned).schema["at"] == pl.Datetime("us", "UTC")
        with pytest.raises(DataError, match="give start and stop for a series of zeros"):
            aggregate(empty, **NAMES, step="1h")
        with pytest.raises(DataError, match="give start and stop for a series of zeros"):
            aggregate(meters(), **NAMES, step="1h", start=START + timedelta(days=9))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changed", "error", "message"),
        [
            ({"alpha": 0.5}, ParameterError, "alpha is 0.5, but must be at least 1 for distinct entities"),
            ({"alpha": -1}, ParameterError, "alpha is -1, but must be positive and finite"),
            ({"alpha": math.nan}, ParameterError, "alpha is nan, but must be finite"),
            ({"alpha": "1"}, ParameterTypeError, "alpha is of type str, but must be a real number"),
            ({"clip": (0, 1)}, ParameterError, "clip or grid is given, but must be None without a value to add up"),
            (
                {"entity": "who"},
                ParameterError,
                "entity is 'who', but must be a column of events: home, at, kwh, region",
            ),
            ({"entity": "at"}, ParameterError, "columns are {'entity': 'at', 'time': 'at'}, but must be different"),
            (
                {"time": "kwh"},
                ParameterTypeError,
                "time 'kwh' holds Float64, but must hold datetimes, dates or integers",
            ),
            ({"step": None}, ParameterTypeError, "step is of type NoneType, but must be a timedelta or like '30m'"),
            ({"step": "1mo"}, ParameterError, "step is '1mo', but must be like '30m' or '1h30m'"),
            ({"step": "0h"}, ParameterError, "step is 0h, but must be positive and at most 36525 days"),
            ({"step": timedelta(days=-1)}, ParameterError, "step is -1 day, 0:00:00, but must be positive"),
            ({"step": "5h"}, ParameterError, "but must lie a whole number of steps after the beginning of the first"),
            ({"step": "1us"}, ParameterError, "at most 50000000 values"),
            ({"start": 3}, ParameterTypeError, "start is of type int, but must be date, as time is"),
            ({"start": START.replace(tzinfo=UTC)}, ParameterError, "but must have no time zone, as time has"),
            ({"stop": START}, ParameterError, "but must lie after start = 2016-01-01 00:00:00"),
        ],
    )
    def test_parameters(self, changed: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error) as caught:
            aggregate(meters(), **DAY | changed)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("changed", "error", "message"),
        [
            (
                {"clip": (0.0, 2.5)},
                ParameterError,
                "clip is (0.0, 2.5), which moves a step by 2.5, more than alpha = 2.0",
            ),
            ({"clip": (-1.5, 1.0)}, ParameterError, "which moves a step by 2.5, more than alpha = 2.0"),
            ({"clip": (-3.0, -1.0)}, ParameterError, "which moves a step by 3.0, more than alpha = 2.0"),
            ({"clip": (1.0, 1.0)}, ParameterError, "clip is (1.0, 1.0), but must be (lower, upper) with lower < upper"),
            ({"clip": (0.0, math.inf)}, ParameterError, "clip[1] is inf, but must be finite"),
            ({"clip": 2.0}, ParameterTypeError, "clip is 2.0, but must be a tuple (lower, upper)"),
            ({"clip": (0.1, 0.2), "grid": 1.0}, ParameterError, "but must hold a multiple of grid = 1.0"),
            ({"grid": 0.3}, ParameterError, "grid is 0.3, but must be a power of two from alpha / 2^40 to alpha = 2.0"),
            ({"grid": 4.0}, ParameterError, "grid is 4.0, but must be a power of two"),
            ({"grid": 2.0**-40}, ParameterError, "grid is 9.094947017729282e-13, but must be a power of two"),
            ({"value": "region"}, ParameterTypeError, "value 'region' holds String, but must hold numbers"),
            ({"value": "mwh"}, ParameterError, "value is 'mwh', but must be a column of events: home, at, kwh, region"),
            ({"group": "kwh"}, ParameterError, "but must be different"),
        ],
    )
    def test_parameters_of_sums(self, changed: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error) as caught:
            aggregate(meters(), **SUM | changed)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("home", None, "entity 'home' is null or NaN in some rows, but must be known in all"),
            ("at", None, "time 'at' is null or NaN in some rows, but must be known in all"),
            ("kwh", None, "value 'kwh' is null or NaN in some rows, but must be known in all"),
            ("kwh", math.nan, "value 'kwh' is null or NaN in some rows, but must be known in all"),
            ("kwh", math.inf, "value 'kwh' is infinite in some rows, but must be finite in all"),
            ("kwh", -math.inf, "value 'kwh' is infinite in some rows, but must be finite in all"),
            ("region", None, "group 'region' is null or NaN in some rows, but must be known in all"),
        ],
    )
    def test_rows(self, tmp_path: Path, column: str, value: Any, message: str) -> None:
        events = meters()
        bad = pl.when(pl.int_range(pl.len()) < len(events) - 2).then(pl.col(column)).otherwise(pl.lit(value))
        events = events.with_columns(bad.alias(column))
        events.write_csv(tmp_path / "e.csv")
        for form in (events, events.to_pandas(), tmp_path / "e.csv"):
            with pytest.raises(DataError) as caught:
                aggregate(form, **SUM, group="region")
            assert str(caught.value) == message

    def test_nan_is_no_entity(self) -> None:
        events = pl.DataFrame({"home": [1.0, math.nan], "at": [0, 0]})
        with pytest.raises(DataError, match="entity 'home' is null or NaN in some rows"):
            aggregate(events, **NAMES)

    def test_an_entity_in_two_groups(self, monkeypatch: pytest.MonkeyPatch) -> None:
        events = pl.DataFrame(
            {"home": ["secret", "secret", "b", "b", "c"], "at": [0, 9, 0, 0, 1], "region": ["n", "s", "s", "n", "n"]}
        )
        for events_at_once in (10, 2):
            monkeypatch.setattr(module, "PASS_EVENTS", events_at_once)
            with pytest.raises(DataError) as caught:
                aggregate(events, **NAMES, group="region", start=0, stop=2)
            assert "secret" not in str(caught.value)
            assert "2" not in str(caught.value)
            assert "give max_groups" in str(caught.value)

    def test_too_many_events_of_one_entity(self) -> None:
        events = pl.DataFrame({"at": np.zeros(2**22 + 1, dtype=np.int8)}).with_columns(
            home=pl.lit("a"), kwh=pl.lit(1.0)
        )
        with pytest.raises(DataError, match="entity 'home' has an entity with more than 4194304 events in one step"):
            aggregate(events, **NAMES, value="kwh")
        assert aggregate(events, **NAMES)["count"].to_list() == [1]
        assert aggregate(events[:-1], **NAMES, value="kwh")["kwh"].to_list() == [1.0]

    def test_a_grid_too_fine_for_exact_sums(self) -> None:
        events = pl.DataFrame({"home": range(2**13 + 1)}).with_columns(at=pl.lit(0), kwh=pl.lit(1.0))
        with pytest.raises(ParameterError, match="must be coarser: the events may add up to over 2\\^53 units"):
            aggregate(events, **NAMES, value="kwh", grid=2.0**-40)
        assert aggregate(events[:-1], **NAMES, value="kwh", grid=2.0**-40)["kwh"].to_list() == [2.0**13]

    def test_step_numbers_have_no_step(self) -> None:
        with pytest.raises(ParameterError, match="step is '1h', but must be None, since time holds step numbers"):
            aggregate(frame_of([("a", 0, 1.0)]), **NAMES, step="1h")
        with pytest.raises(ParameterTypeError, match="start is of type datetime, but must be int, as time is"):
            aggregate(frame_of([("a", 0, 1.0)]), **NAMES, start=START)
        with pytest.raises(ParameterTypeError, match="time 'at' holds UInt64, but must hold"):
            aggregate(frame_of([("a", 0, 1.0)]).cast({"at": pl.UInt64}), **NAMES)

    def test_moments_that_the_column_cannot_hold(self) -> None:
        dates = pl.DataFrame({"home": ["a"], "at": [date(2016, 1, 2)]})
        with pytest.raises(ParameterError, match="but must be a whole number of units of time, which holds Date"):
            aggregate(dates, **NAMES, step="1h")
        with pytest.raises(ParameterError, match="but must be a moment that time can hold, which holds Date"):
            aggregate(dates, **NAMES, step="1d", start=START + timedelta(hours=1))
        with pytest.raises(ParameterError, match="but must be a moment that time can hold"):
            aggregate(meters().cast({"at": pl.Datetime("ns")}), **DAY | {"start": START.replace(year=1)})
        zoned = meters().with_columns(pl.col("at").dt.replace_time_zone("UTC"))
        with pytest.raises(
            ParameterError, match="start is 2016-01-01 00:00:00, but must have a time zone, as time has"
        ):
            aggregate(zoned, **DAY)

    def test_a_mistyped_year_takes_no_memory(self) -> None:
        far = meters().vstack(meters()[:1].with_columns(at=pl.datetime(9016, 1, 1)))
        with pytest.raises(ParameterError, match="at most 50000000 values are allowed"):
            aggregate(far, **NAMES, step="1s")

    def test_names_of_the_result_are_different(self) -> None:
        with pytest.raises(ParameterError, match="time is 'count', but must not be the name of another column"):
            aggregate(meters().rename({"at": "count"}), **DAY | {"time": "count"})

    def test_what_is_no_frame(self, tmp_path: Path) -> None:
        with pytest.raises(ParameterTypeError, match="events is of type list, but must be a path or a frame"):
            aggregate([1, 2], **DAY)
        with pytest.raises(ParameterError, match=r"e.xlsx', but must end in .parquet, .pq, .csv, .csv.gz or .tsv"):
            aggregate(tmp_path / "e.xlsx", **DAY)
        with pytest.raises(FileNotFoundError):
            aggregate(tmp_path / "none.parquet", **DAY)
        with pytest.raises(
            ParameterError, match="entity is 'who', but must be a column of events: home, at, kwh, region"
        ):
            aggregate(meters().to_pandas(), **DAY | {"entity": "who"})

    def test_errors_of_polars_do_not_quote_the_data(self, tmp_path: Path) -> None:
        rows = "".join(f"a,{at},1.5\n" for at in range(500))
        (tmp_path / "e.csv").write_text(f"home,at,kwh\n{rows}a,0,secret\n")
        with pytest.raises(DataError) as caught:
            aggregate(tmp_path / "e.csv", **NAMES, value="kwh")
        assert str(caught.value) == "events cannot be read: polars raised ComputeError"
        assert caught.value.__suppress_context__

    def test_without_polars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "polars", None)
        with pytest.raises(ParameterError, match=r"aggregate needs polars: pip install 'optstream\[polars\]'"):
            aggregate("events.csv", **DAY)
