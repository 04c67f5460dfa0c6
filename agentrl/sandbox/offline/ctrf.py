"""A pytest plugin for `--ctrf FILE`, a test report in the Common Test Report Format, where the real one is missing."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

_STATES = {"passed": "passed", "failed": "failed", "skipped": "skipped"}


def pytest_addoption(parser: Any) -> None:
    if importlib.util.find_spec("pytest_json_ctrf") is None:
        parser.addoption("--ctrf", default=None, metavar="FILE", help="write a report in CTRF's JSON")


def pytest_configure(config: Any) -> None:
    target = config.getoption("--ctrf", None)
    if target and importlib.util.find_spec("pytest_json_ctrf") is None:
        config.pluginmanager.register(Report(target), "agentrl-ctrf-report")


class Report:
    """Collects one entry per test."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.began = time.time()
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        entry = self.tests.setdefault(report.nodeid, {"name": report.nodeid, "status": "passed", "duration": 0})
        entry["duration"] += round(report.duration * 1000)
        if report.outcome != "passed":
            entry["status"] = _STATES[report.outcome]
            entry["message"] = str(report.longrepr)[-4000:]

    def pytest_sessionfinish(self) -> None:
        tests = list(self.tests.values())
        counts = {state: sum(test["status"] == state for test in tests) for state in _STATES}
        summary = {
            "tests": len(tests),
            **counts,
            "pending": 0,
            "other": 0,
            "start": round(self.began * 1000),
            "stop": round(time.time() * 1000),
        }
        results = {"tool": {"name": "pytest"}, "summary": summary, "tests": tests}
        Path(self.target).write_text(json.dumps({"results": results}))
