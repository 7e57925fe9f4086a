"""stormo plan search and strategy.kind=auto: the fastest way to train on so many ranks, and why.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import re
import resource

from train_cli import DEADLINE_S, LONG_FORM, REPOSITORY, STORMO, TrainTest, main


class PlanSearchTest(TrainTest):
    def search(self, *arguments, code=0):
        done = self.stormo("plan", "search", "gpt.toml", "model.layers=3", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_the_fastest_strategy_is_found_and_runs(self):
        *ways, end = [json.loads(line) for line in self.search("-n", "4", "--json").stdout.splitlines()]
        self.assertEqual(end["fitting"], len(ways))
        self.assertEqual(end["too_large"], 0)
        self.assertTrue(any("5 segments, too few for 8 parts of a pipeline" in why for why in end["refused"]))
        self.assertGreater(end["one_process_seconds"], 0)
        self.assertEqual([w["seconds"] for w in ways], sorted(w["seconds"] for w in ways))
        kinds = " ".join(key for w in ways for key in w["keys"])
        for part in ("pipeline=2", "pipeline=4", "tensor=2", "sequence_parallel=true", "kind=fsdp", "host_shared",
                     "interleaved", "recompute=true"):
            self.assertIn(part, kinds)
        for way in (ways[0], ways[len(ways) // 2], ways[-1]):
            end = self.lines("gpt.toml", "model.layers=3", "-n", "4", *way["keys"], "steps=1")[-1]
            self.assertEqual((end["event"], end["steps"]), ("end", 1))
        shown = self.search("-n", "2", "--write", "best.toml").stdout
        self.assertIn("on 2 rank(s) of 1 host(s), batch 4", shown)
        self.assertRegex(shown, "\none process with [0-9]+ threads? here takes [0-9.]+ [mu]?s(: it is faster; use -n 1 threads=[0-9]+)?\n")
        first = shown.splitlines()[2].split()
        recipe = (self.folder / "best.toml").read_text()
        for key in (word for word in first if "=" in word):
            name, value = key.split(".", 1)[1].split("=")
            value = re.escape(f"[{value.replace(',', ', ')}]") if name == "cut" else f'"?{value}"?'
            self.assertRegex(recipe, f"{name} = {value}\n")
        self.assertEqual(self.lines("best.toml", "-n", "2", "steps=1")[-1]["event"], "end")

    def test_a_plan_is_measured_with_the_threads_of_a_run(self):
        wrong = self.start_program("plan", "simulate", "mlp.toml", "--measured", environment={"STORMO_THREADS": "no"})
        _, err = wrong.communicate(timeout=DEADLINE_S)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("STORMO_THREADS='no' must be a whole number", err)
        shown = self.start_program("plan", "search", "mlp.toml", "-n", "1", environment={"STORMO_THREADS": "1"})
        out, err = shown.communicate(timeout=DEADLINE_S)
        self.assertEqual(shown.returncode, 0, err)
        self.assertIn("\none process with 1 thread here takes ", out)

    def test_a_search_says_why(self):
        two_hosts = ("-n", "4", "--hosts", "2", "--gflops", "10", "model.width=64")
        heading, head, *lines = self.search(*two_hosts).stdout.splitlines()
        fitting = int(re.search("([0-9]+) ways fit into .* 0 do not", heading)[1])
        columns = [head.index(name) for name in re.split("  +", head)]
        rows = [[line[a:b].strip() for a, b in zip(columns, [*columns[1:], None])] for line in lines[:10]]
        seconds = {"us": 1e-6, "ms": 1e-3}
        times = [[float(number) * seconds[unit] for number, unit in (text.split() for text in row[:4])] for row in rows]
        for step, *parts in times:
            self.assertAlmostEqual(step, sum(parts), delta=0.02 * step + 1e-4)
        waits = {("pipeline" in row[5], waiting > 0) for row, (_, _, waiting, _) in zip(rows, times)}
        self.assertIn((True, True), waits)
        self.assertTrue(any(communication > 0 for *_, communication in times), rows)
        self.assertIn("what a rank computes on average", lines[10])
        # the most frequent reasons first, as many as --json has
        *_, end = map(json.loads, self.search(*two_hosts, "--json").stdout.splitlines())
        self.assertEqual(end["fitting"], fitting)
        self.assertEqual(lines[11], f"{sum(end['refused'].values())} ways are refused:")
        counts = [int(line.split()[0]) for line in lines[12:17]]
        self.assertEqual(counts, sorted(counts, reverse=True))
        self.assertIn("are no multiple: use train.micro_batches=2", " ".join(lines[12:17]))
        self.assertRegex(lines[17], "--json has all [0-9]+ reasons")

    def test_a_search_for_eight_ranks_takes_less_than_a_minute(self):
        """Of processor time: other tests run beside it."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.search("-n", "8", "model.layers=1", "train.global_batch=2")
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 60)

    # two_hosts_cli_test compares what a search says with what it takes
    def test_eight_hosts_are_said_to_have_faster_ways_than_replicas(self):
        mnist, text = ("data.path=data/mnist",), ("data.path=text",)
        models = (("mnist_mlp", mnist), ("mnist", mnist), ("gpt_shakespeare", text),
                  ("mnist_mlp", (*mnist, "model.sizes=[784, 2048, 2048, 10]", "train.global_batch=32")))
        for recipe, keys in models if LONG_FORM else models[1:3]:
            found = self.stormo("plan", "search", str(REPOSITORY / "recipes" / f"{recipe}.toml"), *keys, "-n", "8",
                                "--hosts", "8", "--gflops", "50", "--json")
            self.assertEqual(found.returncode, 0, found.stderr)
            *ways, _ = map(json.loads, found.stdout.splitlines())
            cuts = re.compile("kind=fsdp|pipeline=|tensor=|context=")
            replicas = next(way["seconds"] for way in ways if not cuts.search(" ".join(way["keys"])))
            self.assertGreater(replicas / ways[0]["seconds"], 1.2, (recipe, keys))

    # as ddp does when it runs; one host has no wire that works while cores compute
    def test_between_hosts_a_search_overlaps_reductions_with_backward(self):
        for hosts, overlaps in (("1", False), ("2", True)):
            lines = self.search("-n", "2", "--hosts", hosts, "--gflops", "1", "model.width=64", "--json").stdout
            plans = [json.loads(line).get("plan", "") for line in lines.splitlines()]
            self.assertEqual(any("mirrored+bucket" in plan for plan in plans), overlaps, plans)

    def test_the_program_chooses_the_strategy(self):
        auto = ("gpt.toml", "model.layers=3", "strategy.kind=auto", "--json")
        for ranks in ("1", "2"):
            done = self.stormo("train", *auto, "-n", ranks, "steps=2", f"checkpoint.directory=auto{ranks}")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, "strategy.kind=auto: strategy.kind=(ddp|fsdp) ")
            self.assertEqual(json.loads(done.stdout.splitlines()[-1])["steps"], 2)
        # whatever else the recipe says of the strategy
        done = self.stormo("train", *auto, "-n", "2", "strategy.pipeline=2", "strategy.chunks=2", "strategy.stage=1",
                           "train.recompute=true", "steps=2", "checkpoint.directory=")
        self.assertEqual(done.returncode, 0, done.stderr)
        dry = self.stormo("train", *auto, "-n", "2", "--dry-run")
        self.assertNotEqual(json.loads(dry.stdout)["recipe"]["strategy"]["kind"], "auto")
        # under another launcher the ranks choose together
        launched = self.stormo("run", "-n", "2", "--", STORMO, "train", *auto, "steps=2", "checkpoint.directory=")
        self.assertEqual(launched.returncode, 0, launched.stderr)
        self.assertIn('"event":"end"', launched.stdout.replace(" ", ""))

    def test_a_search_counts_memory(self):
        *unlimited, end = map(json.loads, self.search("-n", "4", "--gflops", "10", "--json").stdout.splitlines())
        self.assertNotIn("one_process_seconds", end)
        peaks = [way["memory"] for way in unlimited]
        limit = (min(peaks) + max(peaks)) // 2
        limited = ("-n", "4", "--gflops", "10", "--memory", str(limit))
        *ways, end = map(json.loads, self.search(*limited, "--json").stdout.splitlines())
        self.assertEqual(sorted(w["memory"] for w in ways), sorted(peak for peak in peaks if peak <= limit))
        self.assertEqual(end["fitting"] + end["too_large"], len(peaks))
        self.assertGreater(end["too_large"], 0)
        shown = self.search(*limited).stdout
        self.assertIn(f"{end['fitting']} ways fit into ", shown)
        self.assertIn(f"{end['too_large']} ways need too much memory; the smallest of them ", shown)
        none = self.search("-n", "4", "--memory", "1KiB", code=2).stderr
        self.assertRegex(none, "none of [0-9]+ ways fits into 1 KiB on each rank; the smallest needs")
        self.assertIn("--memory", self.search("--memory", "much", code=2).stderr)
        self.assertIn("--write", self.search("--write", "nowhere/best.toml", code=2).stderr)
        self.assertIn("recipe", self.stormo("plan", "search", "fsdp").stderr)
        # what is wrong beside the strategy; that of the recipe, which 3 ranks do not allow, does not count
        self.search("-n", "3", "--gflops", "10", "strategy.pipeline=2")
        self.assertIn("strategy.server_processes", self.search("strategy.server_processes=1", code=2).stderr)


if __name__ == "__main__":
    main()
