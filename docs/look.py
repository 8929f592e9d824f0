"""Opens every built page in a headless browser at two widths and says what a reader could not see.

    python docs/look.py [--pictures DIRECTORY] [HTML]

Exit status 1 with a line for each fault; 77, and the reason, where no browser is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from browser import BROKEN, CUT_OFF, MISSING, SCROLLS, Browser, find

HERE = Path(__file__).resolve().parent
WIDTHS = (1400, 390)
ROOMY = 1000
"""In windows as wide as that nothing needs to be scrolled sideways."""
SKIPPED = ("genindex.html", "search.html")
LEFT_OUT = 77


def faults(browser: Browser, page: Path, pictures: Path | None = None) -> list[str]:
    """Return what is cut off, does not load, or fails on a page."""
    found = []
    for width in WIDTHS:
        browser.resize(width)
        browser.open(page.as_uri())
        found += [f"{page.name} at {width}: {what}" for what in browser.ask(CUT_OFF)]
        # a narrow table scrolls, so that its words stay whole; a wide one breaks long words instead
        found += [f"{page.name} at {width}: {what}" for what in browser.ask(SCROLLS if width >= ROOMY else BROKEN)]
        broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
        found += [f"{page.name} at {width}: no picture at {source}" for source in browser.ask(broken)]
        found += [f"{page.name} at {width}: {what}" for what in browser.problems()]
        if pictures is not None:
            browser.picture(pictures / f"{page.parent.name}-{page.stem}-{width}.png", whole=True)
    return found


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("html", nargs="?", type=Path, default=HERE / "_build" / "html")
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    if find() is None:
        print(f"look: LEFT OUT: {MISSING}", file=sys.stderr)
        return LEFT_OUT
    if args.pictures is not None:
        args.pictures.mkdir(parents=True, exist_ok=True)
    pages = [page for page in sorted(args.html.resolve().rglob("*.html")) if page.name not in SKIPPED]
    with Browser() as browser:
        found = [fault for page in pages for fault in faults(browser, page, args.pictures)]
    for fault in found:
        print(f"look: {fault}", file=sys.stderr)
    print(f"look: {len(pages)} pages at {' and '.join(map(str, WIDTHS))} pixels: {len(found)} faults")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
