"""A plugin for pytest: what tests tell with `record_property("told", line)` is printed below the results."""


def pytest_terminal_summary(terminalreporter):
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    lines = [line for report in reports for name, line in report.user_properties if name == "told"]
    if lines:
        terminalreporter.section("told by the notebooks")
        for line in lines:
            terminalreporter.write_line(line)
