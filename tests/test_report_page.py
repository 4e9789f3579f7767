"""The report page: complete in itself, and readable in a real browser on a desk and a phone, by day and by night."""

import html as markup
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import InfeasibleDeployment
from pipesim.evidence import evidence
from pipesim.page import Study, report_page, study
from pipesim.page.pictures import pareto_points
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload
from tests.conftest import BOX, KIMI, RunCli

LOAD = Workload(concurrency=4, num_prompts=4, input_len=64, output_len=8)
VOID = {"meta", "link", "br", "img", "hr", "input"}
WIDTHS, SCHEMES = (1280, 390), ("light", "dark")

CONTRASTS = """
() => {
  const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return [n[0], n[1], n[2], n[3] ?? 1]; };
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("svg, style")) continue;
    const [a, b] = [luminance(rgba(getComputedStyle(element).color)), luminance(ground(element))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.textContent.trim()]);
  }
  return found;
}
"""
INKS = """
() => [...document.querySelectorAll("svg g[id*=text] [style*='fill: var']")].map(e => {
  const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const luminance = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const [a, b] = [luminance(getComputedStyle(e).fill), luminance(getComputedStyle(e.closest(".card")).backgroundColor)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})
"""


@pytest.fixture(scope="session")
def asked() -> Study:
    """A small load on the founding box."""
    return study(KIMI, BOX, EngineSettings(), LOAD, seeds=1, defaults=("512 in, <b>256</b> out & more",))


@pytest.fixture(scope="session")
def html(asked: Study) -> str:
    """Its page."""
    return report_page(asked)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a worker."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on the PATH")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


class Seen:
    """A page as a browser shows it, and what it asked for and complained of meanwhile."""

    def __init__(self, browser: Browser, file: Path, width: int, scheme: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page: Page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(file.as_uri())


@pytest.fixture(scope="session", params=[(width, scheme) for width in WIDTHS for scheme in SCHEMES], ids=str)
def seen(
    request: pytest.FixtureRequest, browser: Browser, html: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    """The page on a desk and a phone, by day and by night."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html, encoding="utf-8")
    shown = Seen(browser, file, *request.param)
    yield shown
    shown.context.close()


def test_a_browser_asks_for_nothing_else_and_complains_of_nothing(seen: Seen) -> None:
    assert seen.requests == [seen.page.url]
    assert seen.complaints == []


def test_nothing_runs_over_the_side(seen: Seen) -> None:
    assert seen.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    wide = "e => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest('.scroll, pre')"
    assert seen.page.evaluate(f"[...document.querySelectorAll('body *')].filter({wide}).map(e => e.tagName)") == []


def test_text_stands_out_from_its_ground(seen: Seen) -> None:
    contrasts = seen.page.evaluate(CONTRASTS)
    assert len(contrasts) > 100
    assert [(ratio, text) for ratio, text in contrasts if ratio < 4.5] == []


def test_the_text_of_pictures_follows_the_scheme(seen: Seen) -> None:
    ratios = seen.page.evaluate(INKS)
    assert len(ratios) > 50
    assert min(ratios) >= 4.5


def test_what_scrolls_can_be_reached_and_is_named(seen: Seen) -> None:
    boxes = seen.page.evaluate(
        "[...document.querySelectorAll('.scroll')].map(e => [e.tabIndex, e.getAttribute('role'),"
        " e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')])"
    )
    assert len(boxes) >= 7
    assert all(index == 0 and role == "region" and name for index, role, name in boxes)


def test_pictures_have_a_size_and_words_for_who_does_not_see_them(seen: Seen) -> None:
    shown = seen.page.evaluate(
        "[...document.querySelectorAll('svg, img')].map(e => [e.getAttribute('role'), e.getAttribute('aria-label') ||"
        " e.getAttribute('alt'), e.getBoundingClientRect().width, e.getBoundingClientRect().height])"
    )
    assert len(shown) == 6
    for role, words, width, height in shown:
        assert role == "img"
        assert len(words) > 40
        assert width >= 300
        assert height >= 100


def test_headings_go_down_one_step_at_a_time(seen: Seen) -> None:
    levels = seen.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert seen.page.evaluate("document.documentElement.lang") == "en"
    assert "kimi-k2.6" in seen.page.title()


class Balance(HTMLParser):
    """Checks that every element is closed, and gathers identifiers and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.links += [value for name, value in attrs if name in {"href", "xlink:href", "src"} and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_in_itself(html: str) -> None:
    page = Balance()
    page.feed(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith(("#", "data:,")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(page.ids)
    assert "http" not in html
    assert "<script" not in html


def test_the_page_shows_every_split_and_what_was_assumed(asked: Study, html: str) -> None:
    for prediction in asked.splits:
        assert f'<th scope="row">{prediction.deployment.plan}</th>' in html
        assert f"{prediction.mean('output_tokens_per_s'):,.0f}" in html
    assert "512 in, &lt;b&gt;256&lt;/b&gt; out &amp; more" in html
    assert all(item.text.split(":")[0][:40].replace('"', "&#34;") in html for item in evidence(asked.chosen))


def test_a_launch_line_is_shown_where_it_is_known_and_nothing_else_changes(asked: Study, html: str) -> None:
    assert "sglang.launch_server" in html
    assert markup.escape(asked.launch).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") in html
    without, count = re.subn(r"<h3>Start it like this</h3>\n<pre.*?</pre>\n", "", html, flags=re.DOTALL)
    assert (report_page(replace(asked, launch="")), 1) == (without, count)


def test_the_split_asked_for_is_answered_even_where_another_is_faster(asked: Study) -> None:
    slowest = asked.splits[-1].deployment.plan
    own = study(KIMI, BOX, EngineSettings(), LOAD, slowest, seeds=1)
    assert own.asked_for
    assert own.chosen.deployment.plan == slowest
    assert own.chosen in [predictions[-2] for predictions in own.by_concurrency]
    assert [p.deployment.plan for p in own.splits] == [p.deployment.plan for p in asked.splits]


def test_an_open_loop_has_no_concurrency_to_vary() -> None:
    load = Workload(concurrency=4, num_prompts=4, input_len=64, output_len=8, request_rate=4.0)
    page = report_page(study(load_model("llama-3.1-8b"), load_hardware("l4-x8"), EngineSettings(), load, seeds=1))
    assert 'data-picture="timeline"' in page
    assert 'data-picture="pareto"' not in page


def test_the_front_is_what_nothing_beats(asked: Study) -> None:
    points = pareto_points(asked)
    for point in points:
        beaten = any(
            p.tokens_per_s_per_gpu > point.tokens_per_s_per_gpu
            and p.tokens_per_s_per_user > point.tokens_per_s_per_user
            for p in points
        )
        assert not (point.on_front and beaten)
    assert any(point.on_front for point in points)


def test_where_nothing_fits_the_reasons_are_given(run_cli: RunCli, tmp_path: Path) -> None:
    with pytest.raises(InfeasibleDeployment, match="No TP×PP split"):
        study(KIMI, load_hardware("l4-x8"), EngineSettings(), LOAD)
    with pytest.raises(InfeasibleDeployment, match="lacks"):
        study(KIMI, BOX, EngineSettings(), LOAD, ParallelPlan(2, 2))
    file = tmp_path / "report.html"
    ran = run_cli("report", "--hardware", "l4-x8", "-o", file)
    assert (ran.code, file.exists()) == (1, False)
    assert "No TP×PP split" in ran.err


def test_the_command_writes_the_page_or_prints_it(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["report", "--concurrency", 2, "--num-prompts", 2, "--input-len", 8, "--output-len", 4, "--seeds", 1]
    file = tmp_path / "report.html"
    written = run_cli(*flags, "-o", file)
    assert (written.code, written.out) == (0, "")
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    monkeypatch.setattr("pipesim.page.report_page", lambda found: f"{found.chosen.workload.concurrency} users\n")
    assert run_cli(*flags).out == "2 users\n"
