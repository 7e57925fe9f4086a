"""strategy.compression=auto and strategy.period=auto: ranks measure, say what they take and why, and train with it.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import re

from hosts_cli import HostsTest
from train_cli import TrainTest, main

AUTO = "strategy.compression=auto"
# else ranks of one host read each other's gradients as they are
REPLICAS = ("mlp.toml", "-n", "2", "strategy.parameters=replicated")
AVERAGING = ("mlp.toml", "-n", "2", "strategy.kind=parameter_averaging")
WHY = (r"(, which loses least of what hides communication|, the fastest, as none hides it): a step is said to take "
       r"[0-9.]+ [mun]?s, and [0-9.]+ [mun]?s without communication; links of [0-9.]+ [KMGT]?i?B/s and [0-9.]+ [mun]?s")


class ChoiceTest(TrainTest):
    def trained(self, *arguments, code=0):
        """The records of a run, and what it said."""
        done = self.stormo("train", *arguments, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    @staticmethod
    def losses(records):
        return [r["loss"] for r in records if r["event"] == "step"]

    def test_ranks_train_with_the_codec_that_they_say(self):
        records, said = self.trained(*REPLICAS, AUTO, "checkpoint.directory=auto")
        choice = records[0]
        self.assertEqual((choice["event"], choice["key"], choice["kept"]), ("choice", "strategy.compression", False))
        line = re.search(rf"^{AUTO}: ([a-z0-9_]+)(:[0-9.]+)?{WHY} in the host$", said, re.M)
        self.assertIsNotNone(line, said)
        self.assertEqual(line[1], choice["value"])
        self.assertIn(choice["why"], line[0])
        taken = [way for way in choice["ways"] if way["taken"]]
        self.assertEqual([way["compression"].split(":")[0] for way in taken], [choice["value"]])
        self.assertEqual(choice["ways"][0]["compression"], "none")
        self.assertEqual(len(choice["ways"]), 12)
        for way in choice["ways"]:
            self.assertGreaterEqual(way["seconds"], way["alone_seconds"])
            self.assertGreater(way["alone_seconds"], 0)
        # measuring has changed nothing: whoever writes the codec has the same bits
        same, said = self.trained(*REPLICAS, f"strategy.compression={choice['value']}", "checkpoint.directory=")
        self.assertEqual(self.losses(records), self.losses(same))
        self.assertEqual(records[-1]["weights_hash"], same[-1]["weights_hash"])
        self.assertNotIn("auto", said)

    def test_a_run_that_goes_on_keeps_its_codec(self):
        auto = (*REPLICAS, AUTO, "strategy.density=0.05", "checkpoint.directory=run")
        self.trained(*REPLICAS, "strategy.compression=qsgd", "checkpoint.directory=run")
        records, said = self.trained(*auto, "--resume", "steps=8")
        self.assertEqual((records[0]["event"], records[0]["value"], records[0]["kept"]), ("choice", "qsgd", True))
        self.assertIn(f"{AUTO}: qsgd, as in the checkpoint\n", said)
        start = next(r for r in records if r["event"] == "start")
        self.assertEqual((start["first_step"], [c["key"] for c in start["changed"]]), (6, ["train.steps"]))
        # unless it is told to choose
        records, said = self.trained(*auto, "--resume", "steps=10", "--accept-changes", "strategy.compression,strategy.density")
        self.assertEqual((records[0]["event"], records[0]["kept"]), ("choice", False))
        self.assertRegex(said, rf"{AUTO}: [a-z0-9_:.]+{WHY}")

    def test_ranks_choose_the_period_of_averages(self):
        records, said = self.trained(*AVERAGING, "strategy.period=auto", "checkpoint.directory=run")
        choice = records[0]
        self.assertEqual((choice["event"], choice["key"]), ("choice", "strategy.period"))
        self.assertEqual([way["period"] for way in choice["ways"]], [2**i for i in range(10)])
        self.assertRegex(said, rf"strategy.period=auto: {choice['value']}{WHY}")
        self.assertEqual(records[-1]["averaging"]["period"], choice["value"])
        records, _ = self.trained(*AVERAGING, "strategy.period=auto", "checkpoint.directory=run", "--resume", "steps=8")
        self.assertEqual((records[0]["value"], records[0]["kept"]), (choice["value"], True))

    def test_where_nothing_travels_nothing_is_measured(self):
        for ranks in ("1", "2"):  # two of one host share a copy
            records, said = self.trained("mlp.toml", "-n", ranks, AUTO, "checkpoint.directory=")
            self.assertEqual(records[0]["value"], "none")
            self.assertIn(f"{AUTO}: none: another value would change nothing that travels between ranks\n", said)

    def test_strategies_without_a_codec_say_so(self):
        for arguments, why in (
                ((*AVERAGING, AUTO), "sends parameters, which a codec would change, without an outer optimizer"),
                (("mlp.toml", "-n", "2", "strategy.kind=gossip", AUTO), "strategy 'gossip' does not use strategy.compression"),
                (("mlp.toml", "-n", "2", "strategy.period=auto"), "strategy 'ddp' does not use strategy.period"),
                ((*AVERAGING, "strategy.period=auto", AUTO, "strategy.outer=nesterov"), "nobody can say which of them loses less"),
                (("mlp.toml", "-n", "2", "strategy.kind=parameter_server", AUTO), "workers of servers are none")):
            with self.subTest(arguments=arguments):
                records, said = self.trained(*arguments, "checkpoint.directory=", code=2)
                self.assertEqual([r["event"] for r in records], ["error"])
                self.assertIn(why, said)
                self.assertIn(why, records[0]["message"])

    def test_plans_are_priced_with_all_codecs(self):
        plan = ("plan", "simulate", "mlp.toml", "-n", "2", "--hosts", "2", "--gflops", "0.1", AUTO)
        *_, line = self.stormo(*plan, "--json").stdout.splitlines()
        ways = json.loads(line)["ways"]
        self.assertEqual(len(ways), 12)
        self.assertEqual(sum(way["taken"] for way in ways), 1)
        shown = self.stormo(*plan)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(shown.stdout.count('"auto" takes it'), 1)
        self.assertRegex(shown.stdout, 'random_k:0.01 .*"auto" never takes it')
        # with one codec it is the step that is priced there
        one = self.stormo(*plan[:-1], "strategy.compression=int8", "strategy.overlap=false", "--json").stdout.splitlines()[-1]
        without = self.stormo(*plan, "strategy.overlap=false", "--json").stdout.splitlines()[-1]
        of_int8 = next(way for way in json.loads(without)["ways"] if way["compression"] == "int8")
        self.assertAlmostEqual(json.loads(one)["seconds"], of_int8["seconds"], delta=1e-9)
        # a plan is of one codec
        for command in (("plan", "show"), ("plan", "cost"), ("plan", "verify")):
            refused = self.stormo(*command, "mlp.toml", "-n", "2", AUTO)
            self.assertEqual(refused.returncode, 2)
            self.assertIn('ranks choose what is "auto" when they start', refused.stderr)
        self.assertIn("--svg", self.stormo(*plan, "--svg").stderr)
        search = ("plan", "search", "mlp.toml", "-n", "2", "--hosts", "2", "--gflops", "0.1")
        found = self.stormo(*search)
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertRegex(found.stdout, "(?m)^with each strategy.compression: strategy.kind=(ddp|fsdp) ")
        self.assertIn('"auto" takes it', found.stdout)
        codecs = json.loads(self.stormo(*search, "--json").stdout.splitlines()[-1])["codecs"]
        self.assertGreaterEqual(len(codecs["ways"]), 11)
        dry = self.stormo("train", *REPLICAS, AUTO, "--dry-run")
        self.assertEqual(dry.returncode, 0, dry.stderr)
        self.assertIn('compression = "auto"\n', dry.stdout)
        self.assertIn('ranks choose what is "auto" when they start', dry.stderr)


class ChoiceOnTwoHosts(HostsTest):
    RATE = "100mbit"

    def test_a_slow_link_gets_a_codec(self):
        done = self.on_two_hosts("mlp.toml", "model.sizes=[784,512,10]", AUTO, "checkpoint.directory=")
        self.assertEqual(done.returncode, 0, done.stderr)
        choice = json.loads(done.stdout.splitlines()[0])
        self.assertNotEqual(choice["value"], "none")
        rate = re.search(r"links of ([0-9.]+) MiB/s and [0-9.]+ [mun]?s between hosts", done.stderr)
        self.assertIsNotNone(rate, done.stderr)
        self.assertLess(float(rate[1]), 60)  # 100 Mbit/s are 11.9 MiB/s; without measuring it would be 113.5


if __name__ == "__main__":
    main()
