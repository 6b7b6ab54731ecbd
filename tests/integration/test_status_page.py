"""The status page in a real browser: on a desktop and a phone, by keyboard, in light and dark."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from playwright.sync_api import Browser, Page

from common.http.server import HttpServer, Routes
from common.pages.assets import status_pages
from common.pages.model import Status
from tests.fakes.status import loader_status, writer_status

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DESKTOP, PHONE, NARROW = (1280, 900), (390, 844), (320, 640)
PATIENCE_MS = 120_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install the package chromium")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


CASES: dict[str, Callable[[], Status]] = {
    "healthy": lambda: loader_status(now_ms()),
    "broken": lambda: loader_status(now_ms(), broken=True),
    "thousand": lambda: loader_status(now_ms(), broken=True, partitions=1000),
    "writer": lambda: writer_status(now_ms()),
    "merged": lambda: merged_status(now_ms()),
}


def merged_status(now_ms: int) -> Status:
    """A chain of three topics has the names of all of them."""
    status, topic = loader_status(now_ms, broken=True), "shop.public.orders+shop.public.payments+shop.public.shipments"
    return replace(status, partitions=tuple(replace(row, topic=topic) for row in status.partitions))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's own sandbox wants rights that a container's root does not have; the only page is ours.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield chromium
        chromium.close()


class Site:
    """A service that says what a test wants, and a browser's view of it."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self.status = status
        self.server = HttpServer("127.0.0.1:0", Routes(status_pages(self._status)))
        self.complaints: list[str] = []
        self.asked: set[str] = set()

    def _status(self) -> Status:
        return self.status()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/"

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))


@contextmanager
def opened(
    browser: Browser, case: str, size: tuple[int, int] = DESKTOP, scheme: str = "light"
) -> Iterator[tuple[Page, Site]]:
    """The page of a case, once it shows something."""
    site = Site(CASES[case])
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        permissions=["clipboard-read", "clipboard-write"],
    )
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        site.watch(page)
        page.goto(site.url)
        page.wait_for_selector("body:not([data-level=unknown])")
        yield page, site
    finally:
        context.close()
        site.server.close()


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait as a person does: the page allows no script from elsewhere, so not a waiting one either."""
    deadline_s = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        page.wait_for_timeout(50)


def test_healthy_page_shows_no_problem_and_loads_no_external_resource(browser: Browser) -> None:
    with opened(browser, "healthy") as (page, site):
        assert page.inner_text("h1") == "Healthy"
        assert page.title() == "✓ delta-loader"
        assert not page.is_visible("#problems")
        assert "22,500 behind" in page.inner_text("#streams")
        assert "complete through" in page.inner_text("#streams")
        assert page.locator("#rows .row[data-state=well]").count() > 0
        assert {url for url in site.asked if not url.startswith((site.url, "data:"))} == set()
        assert site.complaints == []


def test_problem_shows_its_command_which_can_be_copied_by_keyboard(browser: Browser) -> None:
    with opened(browser, "broken") as (page, site):
        assert page.inner_text("h1") == "One problem to fix"
        assert page.title() == "(3) delta-loader"
        problem = page.locator("#problems li").first
        assert "orders/3 is held (gap)" in problem.inner_text()
        assert "and 1 more of this kind" in problem.inner_text()
        command = problem.locator("code").first.inner_text()
        assert command == "bootstrap rewind ⟨config⟩ --topic orders --partition 3 --to 4100051 --yes"
        button = problem.get_by_role("button", name="Copy: bootstrap rewind")

        def is_copied() -> bool:
            button.focus()
            page.keyboard.press("Enter")
            return button.inner_text() == "Copied"  # for a second: on a busy machine the key is pressed again

        until(page, is_copied)
        assert page.evaluate("navigator.clipboard.readText()") == command
        assert "<b>timeout</b>" in page.inner_text("#problems"), "what an error says is text and no markup"
        assert page.locator("#problems p b").count() == 0
        assert "1,204" in page.inner_text("#dead-letters")
        assert site.complaints == []


# Of a row's number and its tag, in one script: between two, the page may have drawn its rows again.
PLACES = """
() => {
  const number = [...document.querySelector("#rows .place").querySelectorAll("span")].at(-1).getBoundingClientRect();
  return [number.width, number.right, document.querySelector("#rows .tag").getBoundingClientRect().left];
}
"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_long_chain_name_does_not_hide_its_partition_number(browser: Browser, size: tuple[int, int]) -> None:
    with opened(browser, "merged", size) as (page, _):
        first = page.locator("#rows .place").first
        assert first.inner_text().endswith("shop.public.shipments/3")
        width, right, tag_left = page.evaluate(PLACES)
        assert width > 0
        assert right <= tag_left


def test_thousand_partitions_render_few_rows_worst_first_with_a_filter(browser: Browser) -> None:
    with opened(browser, "thousand") as (page, _):
        rows = page.locator("#window .row")
        assert rows.count() < 60
        assert page.get_attribute("#rows", "aria-rowcount") == "1005"
        assert [row.inner_text().split()[0] for row in rows.all()[:2]] == ["orders/3", "orders/7"]
        page.fill("#filter", "held")
        assert (rows.count(), page.inner_text("#shown")) == (2, "2 of 1,004")
        page.fill("#filter", "orders/99")
        assert page.inner_text("#shown") == "11 of 1,004"
        page.fill("#filter", "no such partition")
        assert "No partition matches" in page.inner_text("#rows")
        page.fill("#filter", "")
        page.select_option("#order", "name")
        assert rows.first.inner_text().split()[0] == "orders/0"
        page.focus("#rows")
        until(page, lambda: is_at_the_end(page))
        assert rows.count() < 60


def is_at_the_end(page: Page) -> bool:
    """Chromium scrolls step by step, and on a busy machine may lose the way, so the key is pressed again."""
    page.keyboard.press("End")
    return page.is_visible("#window .row[aria-rowindex='1005']")


def test_page_refresh_keeps_filter_focus_and_scroll(browser: Browser) -> None:
    with opened(browser, "thousand") as (page, site):
        page.fill("#filter", "orders/7")
        page.focus("#filter")
        page.locator("#rows").evaluate("place => { place.scrollTop = 120; }")
        site.status = lambda: replace(loader_status(now_ms(), partitions=1000), state="loading")
        until(page, lambda: page.inner_text("h1") == "Healthy")
        assert "loading" in page.inner_text("header.top")
        assert page.input_value("#filter") == "orders/7"
        assert page.evaluate("document.activeElement.id") == "filter"
        assert page.locator("#rows").evaluate("place => place.scrollTop") == 120


def test_standby_is_shown_as_neither_healthy_nor_broken(browser: Browser) -> None:
    with opened(browser, "healthy") as (page, site):
        site.status = lambda: replace(loader_status(now_ms()), state="standing by for w-7", is_known=False)
        until(page, lambda: page.inner_text("h1") == "Standing by for w-7")
        assert page.title() == "… delta-loader"


def test_unreachable_service_is_not_shown_as_healthy(browser: Browser) -> None:
    with opened(browser, "healthy") as (page, site):

        def gone() -> Status:
            raise ConnectionError

        site.status = gone
        until(page, lambda: "does not answer" in page.inner_text("h1"))
        assert page.title() == "? delta-loader"


def test_writer_page_shows_memory_and_flushes(browser: Browser) -> None:
    with opened(browser, "writer") as (page, site):
        assert "410\xa0MiB of 512\xa0MiB" in page.inner_text("#figures")
        assert "Recent flushes" in page.inner_text("#events")
        assert page.locator("#rows .row[data-state=paused]").count() == 3
        assert site.complaints == []


@pytest.mark.parametrize("case", ["broken", "writer"])
@pytest.mark.parametrize("size", [PHONE, NARROW], ids=["phone", "narrow"])
def test_page_fits_a_phone_screen(browser: Browser, case: str, size: tuple[int, int]) -> None:
    with opened(browser, case, size) as (page, _):
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) == 0
        assert page.locator("#rows .row").nth(1).is_visible()


# Text against what is behind it, as WCAG counts; what is faded on purpose or has no text of its own is left out.
CONTRASTS = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("noscript, select")) continue;
    const [one, other] = [light(rgb(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const name = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 30)}`;
    if (ratio < 4.5) found[name] = ratio;
  }
  return found;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("case", ["broken", "writer"])
def test_text_contrast_is_sufficient_in_light_and_dark(browser: Browser, case: str, scheme: str) -> None:
    with opened(browser, case, scheme=scheme) as (page, _):
        assert page.evaluate(CONTRASTS) == {}


def test_page_has_headings_roles_and_labels_for_screen_readers(browser: Browser) -> None:
    with opened(browser, "broken") as (page, _):
        for heading in ("What to do", "Streams", "Kafka partitions", "Recent commits", "Dead letters"):
            assert page.get_by_role("heading", name=heading).count() == 1, heading
        table = page.get_by_role("table", name="Kafka partitions")
        assert table.get_by_role("columnheader").count() == 5
        assert table.get_by_role("row").count() > 5
        assert page.get_by_role("searchbox", name="Filter by stream, topic or partition").count() == 1
        assert page.get_by_role("combobox", name="Order").count() == 1
        assert page.get_by_role("main").count() == 1
        held = table.get_by_role("row").filter(has_text="orders/3")
        assert "held" in held.first.inner_text(), "a word, and not only a color"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
