"""A report says what was released and promised, holds nothing else, and lets nothing through that is not escaped."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from html.parser import HTMLParser
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import optstream as ops
from optstream.cli.app import run
from optstream.mechanism.description import describe
from optstream.pictures import statement_picture
from optstream.report import Names, ledger_page, release_page, statement_html
from optstream.report.chart import nice_ticks, step_ticks
from optstream.report.content import LEVEL, MOST_POINTS
from optstream.report.words import plainly, promise, stage_name, sureness

if TYPE_CHECKING:
    from pathlib import Path

W = 6
TREE = ops.Hierarchy.nested({"city": {"north": ["a", "b"], "south": ["c"]}})
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def mechanism(**changes: Any) -> ops.OptStream:
    settings: dict[str, Any] = {"sample": ops.EqualSampling(k=W), "bounds": (0, 1000)} | changes
    return ops.OptStream(ops.Guarantee(epsilon=1, w=W), **settings)


def riders(**changes: Any) -> ops.OptStream:
    settings: dict[str, Any] = {"sample": ops.EqualSampling(k=W), "bounds": (0, 1000)} | changes
    return ops.OptStream(ops.Guarantee(epsilon=1, w=W, alpha=2, entities="moving", entity="rider"), **settings)


class Page(HTMLParser):
    """The elements, texts and data of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def data(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.scripts if text.startswith("{")]

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [found for tag, found in self.elements if tag == name]


def test_a_page_holds_the_released_figures_and_their_bands_exactly() -> None:
    release = mechanism().release(np.full(3 * W, 500.0))
    page = Page(release_page(release, Names()))
    (data,) = page.data
    assert data["lines"][0]["values"] == release.values.tolist()
    low, high = release.interval(LEVEL)
    np.testing.assert_allclose(data["lines"][0]["low"], low.ravel(), rtol=1e-5)
    np.testing.assert_allclose(data["lines"][0]["high"], high.ravel(), rtol=1e-5)
    assert all(repr(float(value)) in page.text for value in release.values)


def test_a_page_needs_no_network_and_runs_no_script_but_its_own() -> None:
    text = release_page(mechanism().release(np.full(W, 500.0)), Names())
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not {"link", "iframe", "object", "img", "base", "form"} & {tag for tag, _ in page.elements}
    (rules,) = [found["content"] for found in page.tags("meta") if "http-equiv" in found]
    assert rules is not None
    assert rules.startswith("default-src 'none'")
    assert "script-src 'sha256-" in rules
    assert "unsafe" not in rules.split("script-src")[1]


def test_names_of_nodes_streams_and_texts_are_escaped(tmp_path: Path) -> None:
    tree = ops.Hierarchy.nested({NASTY: [f"{NASTY}1", f"{NASTY}2"]})
    release = mechanism(hierarchy=tree).release(np.full((W, 2), 50.0))
    plain = Page(release_page(mechanism().release(np.full(W, 50.0)), Names()))
    pages = [release_page(release, Names(title=NASTY, entity=NASTY, unit=NASTY)), release._repr_html_()]
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.release(mechanism(), np.full(W, 50.0), stream=NASTY)
        pages += [ledger_page(ledger, Names()), ledger._repr_html_()]
    for text in pages:
        page = Page(text)
        assert len(page.tags("script")) in {0, len(plain.tags("script"))}
        assert not page.tags("img")
        assert not [name for _, found in page.elements for name in found if name.startswith("on")]
        assert NASTY in page.text


def test_headings_tables_and_labels_serve_readers_who_cannot_see() -> None:
    release = mechanism(hierarchy=TREE).release(np.full((2 * W, 3), 50.0))
    page = Page(release_page(release, Names(title="Visits")))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(found.get("aria-label") for found in page.tags("svg"))
    assert len(page.tags("svg")) == len(TREE.nodes)
    assert len(page.tags("table")) == len(page.tags("caption"))
    assert all(found.get("scope") for found in page.tags("th"))
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    assert {found["for"] for found in page.tags("label")} <= set(ids)
    assert {(found["href"] or "#")[1:] for found in page.tags("a")} <= set(ids)
    (html,) = page.tags("html")
    assert html["lang"] == "en"


def test_the_promise_is_in_words_with_the_names_of_things() -> None:
    names = Names(entity="one rider", unit="trips", step=timedelta(minutes=30))
    said = plainly(ops.Guarantee(epsilon=1, w=48), names)
    assert said.startswith("Someone who watches all of this cannot tell what one rider did during any 24 hours")
    aligned = plainly(ops.Guarantee(epsilon=1, w=48, neighbours="aligned"), names)
    assert "any" not in aligned.split(":")[0]
    assert "within one published period" in aligned
    text = " ".join(promise(ops.Guarantee(epsilon=1, w=48, alpha=3), Fraction(1), names))
    assert "2.72 times as likely" in text
    assert "73.2 in 100" in text
    assert "3 (trips)" in text
    assert "weak" not in text
    assert "weak" in " ".join(promise(ops.Guarantee(epsilon=8, w=48), Fraction(8), names))


def test_whom_the_promise_is_about_is_named_by_the_guarantee() -> None:
    release = riders(hierarchy=TREE).release(np.full((W, 3), 50.0))
    text = Page(release_page(release, Names())).text
    assert "cannot tell what one rider did" in text
    assert "giving away what one rider did" in text
    assert "one person" not in text
    assert "changes no step, over all places together, by more than 2" in text
    assert "Which of two things they did is protected half as much" in text
    assert "cannot tell what a guest did" in Page(release_page(release, Names(entity="a guest"))).text
    assert "cannot tell what one rider did" in release._repr_html_()
    fragment = statement_html(release.statement)
    assert "changes no step, over all places together" in fragment
    # Without places there is nothing that is taken together.
    alone = Page(release_page(riders().release(np.full(W, 50.0)), Names())).text
    assert "cannot tell what one rider did" in alone
    assert "changes no single figure by more than 2" in alone
    assert "together" not in alone
    assert "Which of two" not in alone


def test_a_page_about_several_kinds_of_people_begins_with_a_person(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.release(riders(), np.full(W, 50.0), stream="rides", period=0, create=True)
        assert "giving away what one rider did" in Page(ledger_page(ledger, Names())).text
        ledger.release(mechanism(), np.full(W, 50.0), stream="visits", period=0, create=True)
        text = Page(ledger_page(ledger, Names())).text
        assert "giving away what one person did" in text
        assert "cannot tell what one rider did" in text


@pytest.mark.parametrize("epsilon", [Fraction(1, 1000), Fraction(1), Fraction(7, 2), Fraction(20)])
def test_how_sure_an_onlooker_gets_is_the_posterior_of_even_odds(epsilon: Fraction) -> None:
    factor = math.exp(epsilon)
    assert sureness(epsilon) == pytest.approx(factor / (factor + 1), rel=1e-12)


def test_a_release_that_costs_more_than_asked_for_warns() -> None:
    printed = mechanism(calibration="paper", sample=ops.EqualSampling(k=3), features=[ops.Feature.total(W)])
    release = printed.release(np.full(2 * W, 50.0))
    assert release.statement.epsilon > 1
    page = Page(release_page(release, Names()))
    assert "times the budget that was asked for" in page.text
    assert [found for _, found in page.elements if found.get("class") == "warning"]


def test_levels_have_the_names_of_their_nodes() -> None:
    page = Page(release_page(mechanism(hierarchy=TREE).release(np.full((W, 3), 50.0)), Names()))
    assert "perturb: city" in page.text
    assert "perturb: north, south" in page.text
    assert "level 1" not in page.text
    wide = ops.Hierarchy.nested({"all": [str(number) for number in range(7)]})
    assert stage_name("perturb level 1", wide) == "perturb: 0, 1, 2 and 4 more"


def test_times_of_an_index_are_shown() -> None:
    index = pd.date_range("2024-03-01", periods=W, freq="30min")
    release = mechanism().release(pd.Series(np.full(W, 50.0), index=index))
    (data,) = Page(release_page(release, Names())).data
    assert data["labels"] == [f"2024-03-01 {hour:02}:{minute:02}" for hour in range(3) for minute in (0, 30)]


def test_times_follow_from_origin_and_step() -> None:
    names = Names(step=timedelta(hours=6), origin=datetime(2024, 3, 1, tzinfo=UTC))
    (data,) = Page(release_page(mechanism().release(np.full(W, 50.0)), names)).data
    assert data["labels"][:2] == ["2024-03-01 00:00+00:00", "2024-03-01 06:00+00:00"]


def test_a_large_tree_shows_as_much_as_a_browser_takes() -> None:
    steps, leaves = 40 * W, 1000
    tree = ops.Hierarchy.nested({"all": [str(number) for number in range(leaves)]})
    release = mechanism(hierarchy=tree).release(np.full((steps, leaves), 50.0))
    page = Page(release_page(release, Names()))
    shown = len(page.data[0]["lines"])
    assert shown == MOST_POINTS // steps
    assert f"{leaves + 1 - shown:,} further places" in page.text


def test_a_ledger_shows_budget_gaps_and_void_periods(tmp_path: Path) -> None:
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.release(mechanism(), np.full(2 * W, 50.0), stream="visits", period=0)
        ledger.release(mechanism(), np.full(W, 50.0), stream="visits", period=4)
        ledger.set_policy("empty", ops.Guarantee(epsilon=2, w=W))
        released = ledger.releases("visits")
        page = Page(ledger_page(ledger, Names(title="All of it")))
    empty, visits = page.data
    assert empty["lines"] == []
    values = visits["lines"][0]["values"]
    assert values[: 2 * W] == [value for release in released[:2] for value in release.values]
    assert values[2 * W : 4 * W] == [None] * (2 * W)
    assert visits["labels"][-1] == f"step {5 * W - 1}"
    assert "The dearest stretch has used 1." in page.text
    assert "3 periods were charged" in page.text
    assert "Nothing has been published yet." in page.text


def test_the_command_writes_the_page(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    book, target = tmp_path / "ledger.db", tmp_path / "report.html"
    with ops.Ledger(book, create=True) as ledger:
        ledger.release(mechanism(), np.full(W, 50.0), stream="visits")
    named = ["--title", "Visits", "--entity", "one guest", "--step", "4h", "--origin", "2024-01-01"]
    assert run(["report", str(book), "visits", "-o", str(target), *named]) == 0
    page = Page(target.read_text(encoding="utf-8"))
    assert "what one guest did during any 24 hours" in page.text
    assert page.data[0]["labels"][1] == "2024-01-01 04:00"
    capsysbinary.readouterr()
    assert run(["report", str(book)]) == 0
    assert capsysbinary.readouterr().out.startswith(b"<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(["other"], 2), (["--origin", "2024-01-01"], 2), (["--entity", " "], 3), (["--step", "soon"], 3)],
)
def test_the_command_refuses_what_it_cannot_do(wrong: list[str], code: int, tmp_path: Path) -> None:
    book, target = tmp_path / "ledger.db", tmp_path / "report.html"
    ops.Ledger(book, create=True).close()
    assert run(["report", str(book), *wrong, "-o", str(target)]) == code
    assert not target.exists()
    assert run(["report", str(tmp_path / "none.db"), "-o", str(target)]) == 6
    assert not target.exists()


def test_reports_and_pictures_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    release = mechanism(hierarchy=TREE).release(np.full((W, 3), 50.0))
    release.report(tmp_path / "tree.html", title="Visits")
    assert "<h1>Visits</h1>" in (tmp_path / "tree.html").read_text(encoding="utf-8")
    with pytest.raises(ops.ParameterError, match="must be a file"):
        release.report(tmp_path / "no" / "tree.html")
    assert repr(mechanism(hierarchy=TREE).release({name: [50.0] * W for name in "abc"})).startswith(
        "TreeRelease(steps=6,"
    )
    single = mechanism().release(np.full(W, 50.0))
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        ledger.release(mechanism(), np.full(W, 50.0), stream="visits")
        figures = [
            release.plot(tmp_path / "tree.svg"),
            single.plot(tmp_path / "one.png"),
            statement_picture(single.statement, tmp_path / "statement.png"),
            ledger.plot("visits", tmp_path / "ledger.png"),
        ]
    assert len(figures[0].axes) == len(TREE.nodes)
    written = ("tree.svg", "one.png", "statement.png", "ledger.png")
    assert all((tmp_path / name).stat().st_size > 1000 for name in written)


def test_notebooks_show_words_and_numbers() -> None:
    release = mechanism().release(np.full(W, 50.0))
    assert "<svg" in release._repr_html_()
    statement = Page(statement_html(release.statement)).text
    assert "Someone who watches all of this" in statement
    assert release.statement.stages[0].does in statement
    tuning = ops.tune(ops.Guarantee(epsilon=1, w=W), bounds=(0, 100))
    text = Page(tuning._repr_html_()).text
    assert f"{tuning.expected_error:.4g} chosen" in text


def test_ticks_lie_within_their_range() -> None:
    for low, high in ((0, 1), (-3.2, 1e6), (999.5, 1000.5), (0, 1e-9)):
        ticks = nice_ticks(low, high)
        assert 2 <= len(ticks) <= 7
        assert low <= ticks[0] <= ticks[-1] <= high
    for first, last, w in ((0, 0, 1), (0, 17_519, 48), (-47, 528, 48), (0, 6, 7), (0, 10**7, 288)):
        assert len(step_ticks(first, last, w)) <= 9


# Bands of trees, and whole numbers.


@pytest.mark.parametrize(
    "how",
    [
        {"sample": ops.EqualSampling(k=W)},
        {"sample": ops.BucketSampling(k=3)},
        {"sample": ops.EqualSampling(k=W), "perturb": ops.CubeNoise()},
        {"sample": ops.BucketSampling(k=W), "reconstruct": ops.Estimate()},
        {"sample": ops.L1Sampling(k=3, threshold=10.0)},
        {"sample": ops.BucketSampling(k=3), "integers": True},
    ],
    ids=str,
)
def test_bands_of_nodes_cover_what_is_true(how: dict[str, Any]) -> None:
    periods = 60
    release = mechanism(hierarchy=TREE, **how).release(np.full((periods * W, 3), 500.0))
    low, high = release.interval(0.9)
    truth = TREE.sums(np.full(3, 500.0))
    assert low.shape == high.shape == release.values.shape
    covered = ((low <= truth) & (truth <= high)).mean(axis=0)
    # Steps of a bucket err together: of the 60 x 3 or more independent ones of a node, fewer than 70 % being covered
    # where 90 % are has a chance below 1e-12.
    assert (covered > 0.7).all()
    narrow = release.interval(0.5)
    assert (narrow[1] - narrow[0] < high - low).all()


@pytest.mark.parametrize("sample", [ops.EqualSampling(k=W), ops.BucketSampling(k=2)])
def test_whole_numbers_stay_close_and_keep_their_sums(sample: Any) -> None:
    made = mechanism(integers=True, sample=sample, features=[ops.Feature.total(W)])
    release = made.release(np.full(4 * W, 50.3))
    assert release.values.dtype == np.int64
    np.testing.assert_array_equal(release.features[0].ravel(), release.values.reshape(-1, W).sum(axis=1))
    exact = mechanism(sample=sample, features=[ops.Feature.total(W)]).release(np.full(4 * W, 50.3))
    wider = np.subtract(*release.interval(0.9)[::-1]) - np.subtract(*exact.interval(0.9)[::-1])
    np.testing.assert_allclose(wider, 1.0)


@pytest.mark.parametrize("how", [{}, {"reconstruct": ops.Estimate(revise=True)}])
def test_whole_numbers_of_trees_add_up(how: dict[str, Any]) -> None:
    frame = pl.DataFrame({name: np.full(3 * W, 50.3) for name in TREE.leaves})
    release = mechanism(hierarchy=TREE, integers=True, **how).release(frame)
    for values in [release.values] + ([release.revised] if how else []):
        assert set(values.dtypes) == {pl.Int64}
        assert (values["city"] == values["north"] + values["south"]).all()
        assert (values["north"] == values["a"] + values["b"]).all()


def test_series_of_whole_numbers_are_integers() -> None:
    made = mechanism(integers=True)
    assert made.release(pl.Series("x", [50.3] * W)).values.dtype == pl.Int64
    assert made.release(pd.Series([50.3] * W)).values.dtype == np.int64


def test_whole_numbers_come_from_plans_ledgers_streams_and_the_command_line(tmp_path: Path) -> None:
    made = mechanism(integers=True)
    assert "integers" not in describe(mechanism())
    ops.write_plan(made, tmp_path / "plan.toml")
    assert ops.read_plan(tmp_path / "plan.toml") == made
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        first = ledger.release(made, np.full(W, 50.3), stream="visits")
        (again,) = ledger.releases("visits")
    assert first.values.dtype == again.values.dtype == np.int64
    assert first.values.tolist() == again.values.tolist()
    stream = ops.Stream(made)
    assert [stream.push(step, 50.3) for step in range(W)][-1].values.dtype == np.int64
    (tmp_path / "in.csv").write_text("x\n" + "50.3\n" * W)
    flags = ["--epsilon=1", "--w=6", "--alpha=1", "--lower=0", "--upper=1000", "--k=6", "--integers"]
    assert run(["release", str(tmp_path / "in.csv"), "-o", str(tmp_path / "out.csv"), *flags]) == 0
    assert re.fullmatch(r"x\n(-?\d+\n){6}", (tmp_path / "out.csv").read_text())


def test_a_plan_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ops.ParameterError, match="cannot be written"):
        ops.write_plan(mechanism(), tmp_path / "no" / "plan.toml")
    with pytest.raises(ops.ParameterTypeError, match="mechanism is of type str"):
        ops.write_plan("plan", tmp_path / "plan.toml")  # type: ignore[arg-type]


def test_a_slip_in_a_needed_key_is_told(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('epsilon = 1\nw = 6\nalhpa = 1\nbounds = [0, 9]\nsample = { kind = "equal", k = 2 }\n')
    with pytest.raises(ops.ParameterError, match="unknown key 'alhpa'; did you mean 'alpha'"):
        ops.read_plan(plan)
