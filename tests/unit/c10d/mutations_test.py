"""A test notices every operation of the backend that is done wrong: mutations.tsv says which.

Usage: mutations_test.py PATH_OF_C10D_TEST PATH_OF_REPOSITORY
"""
import collections
import concurrent.futures
import csv
import os
import pathlib
import re
import subprocess
import sys
import unittest

KINDS = ("no_data", "gloo", "reversed")
OVERRIDE = re.compile(r"(\w+)\s*\([^(){}]*\)\s*(?:const\s+)?override")

program = checkout = ""


def rows():
    text = (pathlib.Path(checkout) / "tests/unit/c10d/mutations.tsv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", restval=""))


def operations():
    """What StormoBackend overrides."""
    text = (pathlib.Path(checkout) / "stormo/c10d/backend.h").read_text(encoding="utf-8")
    text = re.sub(r"//.*", "", text[text.index("class StormoBackend"):])
    return [name for name in OVERRIDE.findall(text) if name != "StormoBackend"]


def run(tests, mutation=None):
    """Of c10d_test. Returns (exit status, output)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("GTEST_OUTPUT", None)
    if mutation:
        environment["STORMO_TEST_MUTATION"] = mutation
    done = subprocess.run([program, f"--gtest_filter={':'.join(tests)}"], env=environment, timeout=100, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def complaint(row):
    """None if the test notices."""
    mutation = f"{row['operation']}:{row['kind']}"
    try:
        status, output = run([row["test"]], mutation)
    except subprocess.TimeoutExpired:
        return f"{mutation}: {row['test']} did not end"
    if f"mutation: {mutation}\n" not in output:
        return f"{mutation}: {row['test']} never came there:\n{output}"
    if status != 1 or f"[  FAILED  ] {row['test']}" not in output:
        return f"{mutation}: {row['test']} did not notice (status {status}):\n{output}"
    return None


class Mutations(unittest.TestCase):
    def test_each_operation_has_its_rows(self):
        kinds = collections.defaultdict(list)
        for row in rows():
            kinds[row["operation"]].append(row["kind"])
            self.assertTrue((row["test"] == "-") == bool(row["no test because"]), row)
        self.assertGreater(len(operations()), 20)
        self.assertCountEqual(kinds, operations())
        for operation, of_it in kinds.items():
            self.assertIn(sorted(of_it), (["-"], sorted(KINDS)), operation)

    def test_each_mutation_is_noticed(self):
        wrong = [row for row in rows() if row["test"] != "-"]
        tests = sorted({row["test"] for row in wrong})
        status, output = run(tests)
        self.assertEqual(status, 0, output)
        for test in tests:
            self.assertIn(f"[       OK ] {test}", output)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            complaints = [text for text in pool.map(complaint, wrong) if text]
        self.assertEqual(complaints, [], "\n".join(complaints))
        print(f"{len(wrong)} mutations of {len(operations())} operations are noticed")


if __name__ == "__main__":
    program, checkout = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
