# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven by Selenium."""

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

Scheme = Literal["light", "dark"]
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = [name for name, path in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if path is None]
# As root Chromium has no sandbox; the pages are ours.
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


# Contrast of WCAG 2.2, 1.4.3, between an element's text and the first background behind it.
_CONTRAST = """
const luminance = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map((part) => {
  const share = part / 255;
  return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
}).reduce((sum, part, n) => sum + part * [0.2126, 0.7152, 0.0722][n], 0);
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const colour = getComputedStyle(each).backgroundColor;
    if (!/, 0\\)|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const shown = [...document.querySelectorAll("body *")].filter((each) =>
  [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && each.getClientRects().length
  && !["SCRIPT", "STYLE"].includes(each.tagName));
return shown.map((each) => {
  const style = getComputedStyle(each);
  const front = luminance(each instanceof SVGElement ? style.fill : style.color);
  const back = luminance(behind(each));
  const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
  return [each.textContent.trim().slice(0, 40), ratio];
});
"""


class Browser:
    """A window. Elements are found by CSS selectors."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def look(self, width: int, scheme: Scheme = "light", media: str = "screen") -> None:
        """Set what the next page is shown on."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, page: Path) -> None:
        """Open a file."""
        self.driver.get(page.as_uri())

    def visit(self, url: str) -> None:
        """Open a page of a server."""
        self.driver.get(url)

    def run(self, script: str, *values: Any) -> Any:
        """The value that a script returns."""
        return self.driver.execute_script(script, *values)

    def find(self, selector: str) -> WebElement:
        """The first element."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The text of each element."""
        return [each.text for each in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def contrasts(self) -> list[tuple[str, float]]:
        """The beginning of each text that is shown, and its contrast."""
        return [(text, ratio) for text, ratio in self.run(_CONTRAST)]

    @property
    def acting(self) -> ActionChains:
        """Actions of a mouse and a keyboard, without the pauses for people."""
        return ActionChains(self.driver, duration=0)

    def complaints(self) -> list[str]:
        """What the browser has logged since the last call: errors of scripts, files that it could not load."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser; needs what MISSING names."""
    options = Options()
    options.binary_location = CHROMIUM or ""
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER or ""))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
