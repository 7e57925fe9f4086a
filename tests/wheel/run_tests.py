"""Runs files of Python tests, and leaves their results as GoogleTest does, for tools/test_report.

Usage: run_tests.py RESULTS.xml FILE ...
"""
import importlib
import pathlib
import sys
import time
import unittest
import xml.etree.ElementTree as tree

SLOWEST = 5  # are named


class Result(unittest.TextTestResult):
    """Keeps what became of each test, also of those that a class or a module has skipped or failed as a whole."""

    def __init__(self, *arguments, **words):
        super().__init__(*arguments, **words)
        self.cases = {}
        self.seconds = {}

    def of(self, test):
        return self.cases.setdefault(test.id(), [])

    def startTest(self, test):
        super().startTest(test)
        self.of(test)
        self.seconds[test.id()] = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] = time.monotonic() - self.seconds[test.id()]

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.of(test).append(("skipped", reason))

    def addError(self, test, error):
        super().addError(test, error)
        self.of(test).append(("failure", self._exc_info_to_string(error, test)))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.of(test).append(("failure", self._exc_info_to_string(error, test)))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.of(test).append(("failure", f"{subtest}: " + self._exc_info_to_string(error, test)))

    def write(self, path):
        root = tree.Element("testsuites")
        for name, marks in self.cases.items():
            group, _, own = name.rpartition(".")
            case = tree.SubElement(root, "testcase", classname=group, name=own)
            for kind, message in marks:
                tree.SubElement(case, kind, message=message)
        tree.ElementTree(root).write(path)


def main():
    results, *files = sys.argv[1:]
    suite = unittest.TestSuite()
    for file in map(pathlib.Path, files):
        sys.path.insert(0, str(file.parent.resolve()))
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(file.stem)))
    start = time.monotonic()
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite)
    result.write(results)
    slowest = sorted(result.seconds, key=result.seconds.get, reverse=True)[:SLOWEST]
    print(f"{len(result.cases)} tests in {time.monotonic() - start:.0f} s; the slowest:",
          *(f"{name} {result.seconds[name]:.0f} s" for name in slowest), sep="\n  ")
    return 0 if result.wasSuccessful() and result.cases else 1


if __name__ == "__main__":
    sys.exit(main())
