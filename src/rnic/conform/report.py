"""The report, clause by clause: for a terminal, as JSON, as JUnit XML and as a page."""

from __future__ import annotations

import json
from collections import Counter
from html import escape
from xml.etree import ElementTree

from rnic.conform.runner import DEVIATION, FAIL, NOT_APPLICABLE, PASS, VERDICTS, Result

_SIGNS = {PASS: "ok", FAIL: "FAIL", DEVIATION: "deviates", NOT_APPLICABLE: "n/a"}
_COLOURS = {PASS: "#1b7837", FAIL: "#b00020", DEVIATION: "#b3541e", NOT_APPLICABLE: "#667"}


def by_clause(results: list[Result]) -> dict[str, list[Result]]:
    """Results under their clauses, in the order of the standard's parts."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.script.clause, []).append(result)
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _order(clause: str) -> list[tuple[int, str]]:
    words = clause.replace(".", " ").replace("-", " ").replace(",", " ").split()
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def counts(results: list[Result]) -> dict[str, int]:
    """How many came out how."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in VERDICTS}


def deviations(results: list[Result]) -> dict[str, list[str]]:
    """Deviations by name, with the tests that showed them."""
    found: dict[str, list[str]] = {}
    for result in results:
        if result.verdict == DEVIATION:
            found.setdefault(result.detail, []).append(result.script.name)
    return found


def summary(results: list[Result]) -> str:
    """One line."""
    return ", ".join(f"{count} {verdict}" for verdict, count in counts(results).items() if count or verdict == FAIL)


def as_text(results: list[Result]) -> str:
    """For a terminal."""
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


def as_json(results: list[Result], title: str) -> str:
    """One object."""
    return json.dumps(
        {
            "title": title,
            "counts": counts(results),
            "deviations": deviations(results),
            "results": [result.as_dict() for result in results],
        },
        indent=1,
    )


def as_junit(results: list[Result], title: str) -> str:
    """JUnit XML, a test case each; deviations are passes that say so, what is not applicable is skipped."""
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
    """A page that stands alone; each test opens into its script and what happened."""
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
