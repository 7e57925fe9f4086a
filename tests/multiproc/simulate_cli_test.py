"""stormo simulate: training with parameter servers in virtual time, compared policy by policy."""

import json
import xml.etree.ElementTree

from train_cli import TrainTest, main

SERVED = ("sync", "async", "ssp", "n_softsync", "backup_workers")
POLICIES = (*SERVED, "parameter_averaging", "elastic_averaging")
LINE = """schema_version = 1
name = "line"
[model]
kind = "mlp"
sizes = [1, 1]
[data]
kind = "csv"
path = "."
train = "line.csv"
validation = "line.csv"
[train]
loss = "mse"
steps = 100
global_batch = 16
[optimizer]
lr = 0.25
"""


class SimulateTest(TrainTest):
    def simulate(self, *arguments, recipe="mlp.toml"):
        """The objects by policy, without the time that they took."""
        done = self.stormo("simulate", recipe, *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for one in found:
            self.assertGreater(one.pop("wall_s"), 0)
        return {one["policy"]: one for one in found}

    def wrong(self, *arguments):
        done = self.stormo("simulate", *arguments)
        self.assertEqual(done.returncode, 2, f"{arguments}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stdout, "")
        return done.stderr

    def test_all_policies_with_a_straggler(self):
        flags = ("steps=60", "batch=8", "--workers", "4", "--stragglers", "1:10x", "--pooled")
        found = self.simulate(*flags)
        self.assertEqual(tuple(found), POLICIES)
        for name, one in found.items():
            self.assertEqual(one["gradients"], 240, name)
            self.assertEqual(sum(one["steps"]), 240, name)
            if name in SERVED:
                self.assertEqual(sum(one["staleness"]["histogram"]) % (240 - one["dropped"]), 0, name)
            self.assertLess(one["train_loss"], one["curve"][0][1], name)
            self.assertGreater(one["test"]["accuracy"], 0.1, name)
            self.assertLessEqual(len(one["curve"]), 200)
            self.assertAlmostEqual(one["curve"][-1][0], one["virtual_s"], delta=0.01)
            self.assertTrue(0 <= one["waited"] < 1, one["waited"])
        sync, free = found["sync"], found["async"]
        self.assertEqual((sync["updates"], sync["staleness"]["max"], sync["dropped"]), (60, 0, 0))
        self.assertEqual((free["updates"], free["waited"]), (240, 0))
        # three workers wait nine tenths of every step
        self.assertAlmostEqual(sync["waited"], 0.75 * 0.9, delta=0.05)
        self.assertLess(free["virtual_s"], sync["virtual_s"] / 5)
        self.assertGreater(free["staleness"]["mean"], 2)
        self.assertLess(free["steps"][3], free["steps"][0] / 5)
        self.assertGreater(found["backup_workers"]["dropped"], 0)
        # equal seeds, equal everything
        self.assertEqual(found, self.simulate(*flags))
        other = self.simulate(*flags, "--seed", "2")
        self.assertNotEqual(found["async"]["curve"], other["async"]["curve"])
        self.assertAlmostEqual(sync["train_loss"], other["sync"]["train_loss"], delta=1e-5)

    def test_the_recipe_names_the_policy_and_the_steps(self):
        found = self.simulate("strategy.kind=parameter_server", "strategy.policy=ssp",
                              "strategy.bound=1", "steps=0", "epochs=3", "batch=40", "--workers", "3")
        self.assertEqual(tuple(found), ("ssp",))
        self.assertEqual(found["ssp"]["steps"], [9, 9, 9])  # 96 samples are 3 batches
        self.assertLessEqual(found["ssp"]["staleness"]["max"], 4)
        one = self.simulate("--policies", "async,sync", "--workers", "1", "strategy.kind=fsdp")
        self.assertEqual(tuple(one), ("async", "sync"))
        self.assertAlmostEqual(one["async"]["train_loss"], one["sync"]["train_loss"], delta=1e-6)
        self.assertFalse((self.folder / "run").exists())

    def test_a_crash_and_a_batch_that_not_all_have_a_part_of(self):
        # the last batch of an epoch has 96 - 7 * 13 = 5 samples for 8 workers
        found = self.simulate("batch=13", "steps=20", "--crash", "2:50ms", "--crash", "5:0s")
        averaged = found.pop("parameter_averaging")
        self.assertEqual((averaged["lost"], averaged["virtual_s"]), ("worker 5", 0))
        for name, one in found.items():
            self.assertNotIn("lost", one)
            self.assertEqual(one["steps"][5], 0, name)
            self.assertTrue(3 <= one["steps"][2] <= 6, one["steps"])
            self.assertFalse(one["diverged"], name)

    def test_workers_with_copies_of_their_own(self):
        keys = ("strategy.fetch_every=4", "strategy.push_every=4", "strategy.period=4")
        flags = (*keys, "steps=24", "batch=8", "lr=0.01", "--workers", "4", "--stragglers", "1:10x")
        found = self.simulate(*flags)
        self.assertEqual(tuple(found), (*POLICIES, "downpour"))
        averaged, drawn, copies = (found[name] for name in ("parameter_averaging", "elastic_averaging", "downpour"))
        self.assertEqual([one["updates"] for one in (averaged, drawn, copies)], [6, 24, 24])
        self.assertEqual(found["async"]["updates"], 96)
        # three workers wait nine tenths of the time for the slow one, but not after the last average
        self.assertAlmostEqual(averaged["waited"], 0.75 * 0.9 * 5 / 6, delta=0.05)
        self.assertEqual((drawn["waited"], copies["waited"]), (0, 0))
        for one in (averaged, drawn, copies):
            self.assertEqual(one["steps"], [24] * 4)
            self.assertLess(one["train_loss"], one["curve"][0][1], one["policy"])
        again = self.simulate(*flags, "--policies", "downpour,elastic_averaging")
        self.assertEqual(again, {name: found[name] for name in again})
        for key, name in (("kind=parameter_averaging", "parameter_averaging"),
                          ("kind=elastic_averaging", "elastic_averaging"), ("kind=parameter_server", "downpour")):
            one = self.simulate(f"strategy.{key}", *(keys if name == "downpour" else ()), "steps=4")
            self.assertEqual(tuple(one), (name,))

    def test_lost_messages_and_servers(self):
        flags = ("steps=40", "batch=8", "lr=0.01", "strategy.servers=2", "--workers", "4",
                 "--policies", "sync,async,elastic_averaging,parameter_averaging")
        plain = self.simulate(*flags)
        losses = (*flags, "--loss", "0.05", "--timeout", "20ms", "--server-crash", "1:200ms")
        found = self.simulate(*losses, "--server-backups")
        for name, one in found.items():
            self.assertNotIn("lost", one)
            for key in ("updates", "steps", "gradients"):
                self.assertEqual(one[key], plain[name][key], name)
            self.assertAlmostEqual(one["train_loss"], plain[name]["train_loss"], delta=0.02)
            self.assertGreater(one["virtual_s"], plain[name]["virtual_s"])
        self.assertEqual(found, self.simulate(*losses, "--server-backups"))
        # without a copy; averages have no servers
        found = self.simulate(*losses)
        self.assertNotIn("lost", found.pop("parameter_averaging"))
        for name, one in found.items():
            self.assertEqual((one["lost"], one["virtual_s"]), ("server 1", 0.2), name)
        done = self.stormo("simulate", "mlp.toml", *losses)
        self.assertIn("sync: the run ended after 200.0 ms, when server 1 was lost.", done.stdout)
        self.assertIn("servers are 0 to 1", self.wrong("mlp.toml", *flags, "--server-crash", "2:1s"))

    def test_a_policy_that_diverges_does_not_stop_the_others(self):
        # one weight of squares: an update of rate 0.25 halves the error, eight at once overshoot
        (self.folder / "line.csv").write_text("x,y\n" + "1,3\n-1,-3\n" * 32)
        (self.folder / "line.toml").write_text(LINE)
        found = self.simulate(recipe="line.toml")
        self.assertTrue(found["async"]["diverged"])
        self.assertNotIn("train_loss", found["async"])
        self.assertGreater(found["async"]["updates"], 8)
        self.assertTrue(all(loss < float("inf") for _, loss in found["async"]["curve"]))
        self.assertFalse(found["sync"]["diverged"])
        self.assertLess(found["sync"]["train_loss"], 1e-6)
        done = self.stormo("simulate", "line.toml")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"async .* diverged at [\d.]+ m?s +-\n")
        # what the literature advises against it
        found = self.simulate("strategy.compensation=learning_rate_over_n", "--policies", "async",
                              recipe="line.toml")
        self.assertFalse(found["async"]["diverged"])
        # Zhang et al.: a gradient that is stale by s has a rate of 0.25 / s
        many = ("--workers", "30", "batch=60", "--policies", "async")
        self.assertTrue(self.simulate(*many, recipe="line.toml")["async"]["diverged"])
        found = self.simulate("strategy.compensation=inverse_staleness", *many, recipe="line.toml")["async"]
        self.assertFalse(found["diverged"])
        self.assertAlmostEqual(found["staleness"]["mean"], 29, delta=1)
        self.assertLess(found["train_loss"], 1e-6)

    def test_text_and_picture(self):
        flags = ("steps=40", "lr=0.003", "--workers", "4", "--stragglers", "1:20x", "--pooled")
        done = self.stormo("simulate", "mlp.toml", *flags, "--policies", "sync,async")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"policy +virtual time .* train loss +test accuracy\nsync ")
        self.assertRegex(done.stdout, r"First to a train loss of [\d.]+, the worst final one, was async")
        done = self.stormo("simulate", "mlp.toml", *flags, "--svg")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [e for e in xml.etree.ElementTree.fromstring(done.stdout).iter() if e.tag.endswith("polyline")]
        self.assertEqual(len(lines), len(POLICIES))
        # a language model has a validation part, and no accuracy
        done = self.stormo("simulate", "gpt.toml", "--workers", "2", "--policies", "ssp", "clip_norm=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("validation loss", done.stdout)

    def test_errors_are_listed_together(self):
        text = self.wrong("mlp.toml", "--workers", "5", "--policies", "all,asynch", "strategy.n=9",
                          "strategy.backups=5", "batch=4", "--stragglers", "6:2x", "lr=fast")
        for part in ("'asynch' is no policy; write sync, async", "6 stragglers among 5 workers", "n = 9",
                     "5 backups", "at least 5 (batch=5)", "optimizer.lr"):
            self.assertIn(part, text)
        for line in text.splitlines():
            self.assertTrue(line.startswith("stormo simulate: "), line)
        self.assertIn("none.toml", self.wrong("none.toml"))
        self.assertIn("excludes", self.wrong("mlp.toml", "--svg", "--json"))
        self.assertIn("loss scale", self.wrong("mlp.toml", "precision=float16"))
        self.assertIn("add strategy.fetch_every=4", self.wrong("mlp.toml", "--policies", "downpour"))
        self.assertIn("with a fixed period", self.wrong("mlp.toml", "strategy.max_distance=1"))
        self.assertIn("moving rate", self.wrong("mlp.toml", "strategy.moving_rate=0.5"))
        self.assertIn("lars and lamb", self.wrong("mlp.toml", "optimizer.kind=lamb", "strategy.placement=sliced",
                                                  "strategy.servers=2"))
        done = self.stormo("simulate", "mlp.toml", "data.path=nowhere", "--json")
        error = json.loads(done.stdout)
        self.assertEqual((done.returncode, error["event"], error["exit_code"]), (2, "error", 2))


if __name__ == "__main__":
    main()
