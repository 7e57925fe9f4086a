"""stormo train with tournaments and codistillation: what the members of a population report, and what is refused."""

import json

from train_cli import TrainTest, main

TOURNAMENT = "strategy.kind=tournament"
CODISTILLATION = "strategy.kind=codistillation"
RANKS = ("-n", "3", "strategy.topology=complete", "strategy.period=4")


class PopulationTest(TrainTest):
    def records(self, *arguments):
        """Those of evaluations of the validation part, and the last one."""
        records = self.lines("gpt.toml", "steps=12", "train.eval_every=4", *RANKS, *arguments, "--overwrite")
        self.assertEqual(records[-1]["event"], "end")
        return [r for r in records if r["event"] == "eval" and r["split"] == "validation"], records[-1]

    def test_evaluations_are_of_the_best_of_different_members(self):
        for kind in (TOURNAMENT, CODISTILLATION):
            with self.subTest(kind):
                evals, end = self.records(kind, "strategy.period=100", "checkpoint.directory=run")
                self.assertEqual([e["step"] for e in evals], [4, 8, 12])
                for e in evals:
                    self.assertEqual(len(e["member_losses"]), 3)
                    if kind == CODISTILLATION:  # in tournaments of all one model may win everywhere
                        self.assertEqual(len(set(e["member_losses"])), 3, "initial parameters differ")
                    self.assertAlmostEqual(e["loss"], min(e["member_losses"]), 6)
                    self.assertTrue(0 <= e["churn"] <= 1, e)
                best = end["population"]["best"]
                self.assertEqual(evals[-1]["member_losses"][best], min(evals[-1]["member_losses"]))
                self.assertEqual(end["population"]["exchanges"], 3)
                self.assertNotIn("averaging", end)
                saved = self.stormo("evaluate", "run", "--json")
                self.assertEqual(saved.returncode, 0, saved.stderr)
                losses = {r["split"]: r["loss"] for r in map(json.loads, saved.stdout.splitlines())}
                self.assertAlmostEqual(losses["validation"], evals[-1]["loss"], 5)

    def test_copies_are_at_most_a_period_old(self):
        _, end = self.records(CODISTILLATION)
        self.assertEqual((end["population"]["max_age"], end["population"]["mean_age"]), (4, 2.5))
        self.assertEqual(end["population"]["taken"], [0, 0, 0])
        _, end = self.records(CODISTILLATION, "strategy.burn_in=12")
        self.assertEqual(end["population"]["max_age"], 0)
        text = self.stormo("train", "gpt.toml", "steps=8", *RANKS, CODISTILLATION, "--overwrite")
        self.assertRegex(text.stderr + text.stdout, r"population +the best is member \d; 2 exchanges; copies were ")
        self.assertRegex(text.stderr + text.stdout, r"; of members \d\.\d+ \d\.\d+ \d\.\d+, which differ in ")

    def test_the_plan_says_how_members_meet(self):
        plan = self.stormo("train", "gpt.toml", *RANKS, TOURNAMENT, "--dry-run")
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertRegex(plan.stdout, r"tournament 0-\d+ over dp by complete every 4")
        cost = self.stormo("plan", "cost", "gpt.toml", *RANKS, CODISTILLATION)
        self.assertEqual(cost.returncode, 0, cost.stderr)
        self.assertIn("complete of 3 ranks: each sends to at most 2 other(s)\n", cost.stdout)

    def test_what_populations_cannot_do_is_refused(self):
        for recipe, changes, reason in (
                ("mlp.toml", (TOURNAMENT,), "strategy.kind: needs a validation part; write data.validation=NAME or "),
                ("gpt.toml", (TOURNAMENT, "strategy.topology=torus", "-n", "3"), "has members that meet by topology "),
                ("gpt.toml", (TOURNAMENT, "strategy.distillation=2"), "does not use strategy.distillation"),
                ("gpt.toml", (TOURNAMENT, "precision=float16"), "loss scale of its own"),
                ("gpt.toml", (CODISTILLATION, "train.recompute=true"), "codistillation computes a batch in one piece"),
                ("gpt.toml", (CODISTILLATION, "strategy.temperature=0"), "strategy.temperature"),
                ("gpt.toml", (CODISTILLATION, "elastic.enabled=true"), "elastic training takes strategy 'ddp'"),
        ):
            with self.subTest(changes):
                ranks = () if "-n" in changes else ("-n", "2")
                self.assertIn(reason, self.refused(recipe, *ranks, *changes))


if __name__ == "__main__":
    main()
