"""The report, clause by clause: for a terminal, as JSON, as JUnit XML and as a page."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from xml.etree import ElementTree

from rnic import __version__
from rnic.conform.report_file import FORMAT, MAX_TEXT, VERSION
from rnic.conform.runner import DEVIATION, FAIL, NOT_APPLICABLE, PASS, VERDICTS, Result

_SIGNS = {PASS: "ok", FAIL: "FAIL", DEVIATION: "deviates", NOT_APPLICABLE: "n/a"}
_COLOURS = {PASS: "#1b7837", FAIL: "#b00020", DEVIATION: "#b3541e", NOT_APPLICABLE: "#667"}


def by_clause(results: list[Result]) -> dict[str, list[Result]]:
    """Return results by clause, in the order of the standard's parts."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.script.clause, []).append(result)
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(clause: str) -> list[tuple[int, str]]:
    words = clause.replace(".", " ").replace("-", " ").replace(",", " ").split()
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def counts(results: list[Result]) -> dict[str, int]:
    """Return how many scripts ended with each verdict."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in VERDICTS}


def deviations(results: list[Result]) -> dict[str, list[str]]:
    """Return deviations by name, with the tests that showed them."""
    found: dict[str, list[str]] = {}
    for result in results:
        if result.verdict == DEVIATION:
            found.setdefault(result.detail, []).append(result.script.name)
    return found


def summary(results: list[Result]) -> str:
    """Format the counts as one line."""
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(results).items() if count or verdict == FAIL)


def as_text(results: list[Result]) -> str:
    """Format the report for a terminal."""
    lines = []
    for clause, group in by_clause(results).items():
        lines.append(clause)
        for result in group:
            lines.append(f"  {_SIGNS[result.verdict]:8} {result.script.name:32} {result.script.says}")
            if result.verdict != PASS:
                lines.append(f"  {'':8} {result.detail}")
            if result.verdict == FAIL:
                lines += [f"  {'':8}   {line}" for line in result.log]
    for name, tests in deviations(results).items():
        lines.append(f"deviation: {name} ({', '.join(tests)})")
    return "\n".join([*lines, summary(results)])


def as_json(results: list[Result], title: str, peer: str, maker: str, mtu: int, made: str) -> str:
    """Return the report as a JSON object with the fields of :mod:`rnic.conform.report_file`.

    Args:
        results: of all scripts.
        title: the command.
        peer: description of the peer.
        maker: whose known deviations hold.
        mtu: its largest path MTU in bytes.
        made: when, as ISO 8601.
    """
    return json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "rnic": __version__,
            "made": made,
            "peer": {"name": peer[:MAX_TEXT], "maker": maker[:MAX_TEXT], "mtu": mtu},
            "title": title[:MAX_TEXT],
            "counts": counts(results),
            "deviations": deviations(results),
            "results": [{**result.as_dict(), "detail": result.detail[:MAX_TEXT]} for result in results],
        },
        indent=1,
    )


def as_junit(results: list[Result], title: str) -> str:
    """Return JUnit XML with one case per test; deviations pass with a note, tests that do not apply are skipped."""
    tallied = counts(results)
    suite = ElementTree.Element(
        "testsuite",
        name=title,
        tests=str(len(results)),
        failures=str(tallied[FAIL]),
        skipped=str(tallied[NOT_APPLICABLE]),
        errors="0",
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        script = result.script
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{script.suite}.{script.clause}",
            name=script.name,
            time=f"{result.seconds:.3f}",
        )
        if result.verdict == FAIL:
            failure = ElementTree.SubElement(case, "failure", message=result.detail)
            failure.text = "\n".join([script.says, script.text, "", *result.log])
        elif result.verdict == NOT_APPLICABLE:
            ElementTree.SubElement(case, "skipped", message=result.detail)
        elif result.verdict == DEVIATION:
            ElementTree.SubElement(case, "system-out").text = f"known deviation: {result.detail}"
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_html(results: list[Result], title: str) -> str:
    """Return a self-contained page; each test expands to its script and log."""
    rows = []
    for clause, group in by_clause(results).items():
        rows.append(f'<tr><th colspan="3">{escape(clause)}</th></tr>')
        for result in group:
            colour = _COLOURS[result.verdict]
            script = result.script
            rows.append(
                f'<tr><td style="color:{colour}">{_SIGNS[result.verdict]}</td><td>{escape(script.name)}</td>'
                f"<td>{escape(script.says)}{'<br><b>' + escape(result.detail) + '</b>' if result.detail else ''}"
                f"<details><summary>script</summary><pre>{escape(script.text)}</pre></details>"
                f"<details><summary>what happened</summary><pre>{escape(chr(10).join(result.log))}</pre></details>"
                "</td></tr>"
            )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>'
        "body{font-family:sans-serif;margin:2em}td,th{text-align:left;vertical-align:top;padding:2px 8px}"
        "tr:nth-child(even){background:#f4f4f6}pre{margin:0}</style></head>"
        f"<body><h1>{escape(title)}</h1><p>{escape(summary(results))}</p><table>{''.join(rows)}</table></body></html>\n"
    )
