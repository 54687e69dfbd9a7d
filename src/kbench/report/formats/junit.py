"""JUnit XML, as Jenkins, GitLab and others show it: a case is a test, a regression a failure.

What is not known, or cannot be, is skipped with the reason; what is broken is an error. The order of elements is that
of Jenkins' schema: properties, then the one of skipped, error and failure, then output.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from kbench.core import shown
from kbench.results import BROKEN, VerdictRow

from .sheet import Sheet, in_words, is_failure, names_of

# What XML 1.0 has no way to write.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAX_CHARS = 4000


def junit(sheet: Sheet) -> str:
    """One test suite, a test for each row in their order."""
    counts = {"errors": 0, "failures": 0, "skipped": 0}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(root, "testsuite", {"name": _text(sheet.verb), "tests": str(len(sheet.rows))})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("host_id", sheet.host_id), ("commit", sheet.commit), ("kbench", sheet.version)):
        if value:
            ElementTree.SubElement(properties, "property", {"name": name, "value": _text(value)})
    total = 0.0
    for row, name in zip(sheet.rows, names_of(sheet.rows), strict=True):
        total += row.b_seconds or 0.0
        _case(suite, sheet, row, name, counts)
    for element in (root, suite):
        element.set("time", f"{total:.9f}")
        for name, count in counts.items():
            element.set(name, str(count))
    root.set("tests", str(len(sheet.rows)))
    root.set("name", _text(sheet.verb))
    suite.set("hostname", _text(sheet.host_id or "localhost"))
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d.*", sheet.created):
        suite.set("timestamp", sheet.created[:19])  # the schema has no zone
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(suite: ElementTree.Element, sheet: Sheet, row: VerdictRow, name: str, counts: dict[str, int]) -> None:
    about = {"name": _text(name), "classname": _text(sheet.verb.replace(" ", ".")), "time": f"{row.b_seconds or 0:.9f}"}
    case = ElementTree.SubElement(suite, "testcase", about)
    values = {
        "verdict": row.outcome, "ratio": row.ratio, "low": row.low, "high": row.high, "margin": row.margin,
        "n_pairs": row.n_pairs, "a": row.a, "b": row.b, "a_seconds": row.a_seconds, "b_seconds": row.b_seconds,
    }  # fmt: skip
    properties = ElementTree.SubElement(case, "properties")
    for key, value in values.items():
        if value not in (None, ""):
            text = f"{value:.9g}" if isinstance(value, float) else _text(str(value))
            ElementTree.SubElement(properties, "property", {"name": key, "value": text})
    words = _text(in_words(row))
    if row.outcome in BROKEN:
        counts["errors"] += 1
        ElementTree.SubElement(case, "error", {"message": words, "type": row.outcome}).text = words
    elif is_failure(sheet, row):
        counts["failures"] += 1
        ElementTree.SubElement(case, "failure", {"message": words, "type": row.outcome}).text = words
    elif row.status != "ok" or row.verdict == "INCONCLUSIVE":
        counts["skipped"] += 1
        ElementTree.SubElement(case, "skipped", {"message": words})
    else:
        ElementTree.SubElement(case, "system-out").text = words


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", shown(text))[:_MAX_CHARS]
