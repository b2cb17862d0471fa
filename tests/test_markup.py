"""Markup: what is escaped, and how readers, mixtures and infos look in a notebook."""

from __future__ import annotations

import re
from unittest import mock

import numpy as np
import pytest

import atarirb
from atarirb.info import facts
from atarirb.markup import Markup, element, join, number, table
from tests import shards


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = element("p", '<b> & "x"', element("br"), Markup("&lt;"), title="\"<'&", data_step=3)
    assert made == (
        '<p title="&quot;&lt;&#x27;&amp;" data-step="3">&lt;b&gt; &amp; &quot;x&quot;<br>&lt;</p>'
    )
    assert isinstance(made, Markup)
    assert join(["a<", Markup("<i>")], ", ") == "a&lt;, <i>"


def test_attributes_that_are_true_false_or_reserved_words():
    assert element("input", hidden=True, checked=False, id=None, class_="a b") == '<input hidden class="a b">'
    assert element("path", x=1.0, y=2.345, width=-0.5) == '<path x="1" y="2.35" width="-0.5"></path>'


def test_a_table_has_headings_of_rows_and_columns():
    assert table([("a", "<1>")], head=("", "n"), caption="c", class_="k") == (
        '<table class="k"><caption>c</caption>'
        '<thead><tr><th scope="col"></th><th scope="col">n</th></tr></thead>'
        '<tbody><tr><th scope="row">a</th><td>&lt;1&gt;</td></tr></tbody></table>'
    )


@pytest.mark.parametrize(
    ("value", "written"), [(0, "0"), (-1.0, "-1"), (12345.6, "12,346"), (0.125, "0.125"), (1e-9, "1e-09")]
)
def test_numbers(value, written):
    assert number(value) == written


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A dataset of which no frame is to be read."""
    out = tmp_path_factory.mktemp("html") / "<data>"
    shards.write(out, [[(9, 1, True), (30, 2, True)]], codec="raw")
    return out


@pytest.fixture
def unread():
    """Nothing may read a frame or a column."""
    with (
        mock.patch("atarirb.store.raw.Frames.frames", side_effect=AssertionError),
        mock.patch("atarirb.reader.gather", side_effect=AssertionError),
    ):
        yield


def cells(html):
    """The rows of a table, as text."""
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_an_info_is_a_table_of_its_facts(path, unread):
    info = atarirb.show(path)
    html = info._repr_html_()
    assert "<caption>Pong/1</caption>" in html
    found = dict(cells(html))
    assert list(found) == list(facts(info))
    assert found["path"].endswith("&lt;data&gt;")
    assert found["steps"] == "39"
    assert found["episodes"] == "2: 0 of them cut, 1 truncated, 0 ended by the time limit"


def test_a_reader_says_its_options_and_what_it_draws_from(path, unread):
    with atarirb.open(path, frame_stack=4, n_step=3) as reader:
        found = dict(cells(reader._repr_html_()))
        assert found["options"] == "frame_stack=4, n_step=3"
        assert integer(found["steps to draw"]) == reader.valid_steps
        few = reader.select([0])
        assert integer(dict(cells(few._repr_html_()))["steps to draw"]) == few.valid_steps == 9
    assert "<caption>Reader of Pong/1, closed</caption>" in reader._repr_html_()
    with atarirb.open(path) as reader:
        assert ["options", "as by default"] in cells(reader._repr_html_())


def test_a_mixture_says_what_it_draws_from_each_run(path, unread):
    readers = {"a": atarirb.open(path), "<b>": atarirb.open(path).select([1])}
    plain = atarirb.mix(readers)
    expected = [
        ["run", "dataset", "splits", "episodes", "steps", "steps to draw"],
        ["a", "Pong/1", "1", "2", "39", "39"],
        ["&lt;b&gt;", "Pong/1", "1", "2", "39", "30"],
    ]
    assert cells(plain._repr_html_()) == expected
    weighted = cells(atarirb.mix(readers, {"a": 1, "<b>": 2.5})._repr_html_())
    assert [row[-1] for row in weighted] == ["weight", "1", "2.5"]
    assert "an equal share of each run" in atarirb.mix(readers, stacked=True)._repr_html_()
    plain.close()
    for reader in readers.values():
        reader.close()
    assert "<caption>Mixture, closed</caption>" in plain._repr_html_()
    assert cells(plain._repr_html_()) == expected


def integer(text):
    return int(text.replace(",", ""))


def test_reprs_stay_as_they_were(path):
    with atarirb.open(path, gamma=np.float64(0.5)) as reader:
        assert repr(reader) == "<atarirb.Reader Pong/1: 39 steps, gamma=np.float64(0.5)>"
    with atarirb.open(path) as reader:
        assert repr(reader) == "<atarirb.Reader Pong/1: 39 steps>"
