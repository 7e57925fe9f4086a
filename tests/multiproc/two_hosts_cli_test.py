"""Every way to cut a training on two hosts, which are network namespaces: it trains as one process does, and what it
says that it sent has crossed the network.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import json
import random
import re

from hosts_cli import HostsTest
from train_cli import main

# losses are compared to 9 digits: sums of other orders
GPT = ("gpt.toml", "model.layers=3", "steps=6", "train.clip_norm=1", "precision=float64")
MLP = ("mlp.toml", "precision=float64")
CNN = (*MLP, "model.kind=cnn")
COLUMNS = ("columns.toml",)
WAYS = {
    "pipeline": (GPT, ("strategy.pipeline=2", "train.micro_batches=2")),
    "zero_bubble": (GPT, ("strategy.pipeline=2", "train.micro_batches=2", "strategy.schedule=zero_bubble")),
    "tensor": (GPT, ("strategy.tensor=2",)),
    "context": (GPT, ("strategy.context=2",)),
    "spatial": (CNN, ("strategy.spatial=2,1",)),
    "vertical": (COLUMNS, ("strategy.kind=vertical", "strategy.labels=1")),
    "averaging": (MLP, ("strategy.kind=parameter_averaging", "strategy.period=1")),
    "servers": (MLP, ("strategy.kind=parameter_server", "strategy.policy=sync", "strategy.server_processes=2")),
}
TABLE = """schema_version = 1
name = "columns"
precision = "float64"
[model]
kind = "mlp"
sizes = [4, 6, 2]
[data]
kind = "csv"
path = "."
train = "table.csv"
label = "kind"
[train]
steps = 6
global_batch = 8
log_every = 1
"""


class TwoHosts(HostsTest):
    def setUp(self):
        super().setUp()
        numbers = random.Random(3)
        rows = [[numbers.gauss(0, 1) for _ in range(4)] for _ in range(24)]
        (self.folder / "table.csv").write_text(
            "a,b,c,d,kind\n" + "".join(f"{','.join(map(str, row))},{int(sum(row) > 0)}\n" for row in rows))
        (self.folder / "columns.toml").write_text(TABLE)

    def records(self, done, kinds=("step", "eval")):
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(records[-1]["event"], "end")
        return records[-1], [r["loss"] for r in records if r["event"] in kinds]

    def run_over_the_network(self, recipe, *way):
        """The last record and the losses of a run on two hosts. The kernel has counted at least the bytes that the run
        says it has sent."""
        before = self.bytes_at_second_host()
        servers = "strategy.server_processes=2" in way  # a worker and a server on each host
        done = self.on_two_hosts(*recipe, *way, "checkpoint.directory=", ranks=2 if servers else 1)
        # each worker of servers tells its own loss
        end, losses = self.records(done, ("eval",) if servers else ("step", "eval"))
        crossed = self.bytes_at_second_host() - before
        self.assertEqual(end["ranks"], 2)
        if servers:
            # the parameters in each pull of the worker that is not with the servers, its gradients in each push
            sent = min(sum(s["bytes"] * (s["pulls"][w] + s["pushes"][w]) for s in end["servers"]) for w in (0, 1))
        else:
            sent = 2 * min(end["bytes_sent_per_rank"])
        self.assertGreater(sent, 0)
        self.assertGreaterEqual(crossed, sent)
        return end, losses

    def test_every_way_trains_as_one_process(self):
        alone = {}
        for name, (recipe, way) in WAYS.items():
            with self.subTest(way=name):
                if recipe not in alone:
                    _, alone[recipe] = self.records(
                        self.stormo("train", *recipe, "-n", "1", "--json", "checkpoint.directory="))
                _, losses = self.run_over_the_network(recipe, *way)
                self.assertGreater(len(losses), 0)
                for mine, theirs in zip(losses, alone[recipe][-len(losses):], strict=True):
                    self.assertAlmostEqual(mine, theirs, delta=1e-9 * abs(theirs))

    def test_a_worker_of_servers_is_cut_over_hosts(self):
        """Of one worker a stage on each host; of two workers the first on one host, and the second on both. Servers are
        on the second host, so stages map their memory or send."""
        way = ("strategy.kind=parameter_server", "strategy.policy=sync", "strategy.server_processes=2",
               "strategy.pipeline=2", "train.micro_batches=2")
        recipe = ("gpt.toml", "model.layers=3", "steps=6", "eval_every=3", "precision=float64", "checkpoint.every=3")
        _, alone = self.records(self.stormo("train", *recipe, "-n", "1", "--json", "checkpoint.directory="), ("eval",))
        for ranks, workers in (((1, 3), 1), ((3, 3), 2)):
            with self.subTest(ranks=ranks):
                done = self.on_two_hosts(*recipe, *way, f"checkpoint.directory={self.shared}/{workers}", ranks=ranks)
                end, losses = self.records(done, ("eval",))
                self.assertEqual((end["ranks"], end["hosts"], end["steps"]), (2 * workers, 2, 6))
                self.assertAlmostEqual(losses[-1], alone[-1], delta=1e-10)
                resumed = self.stormo("train", *recipe, "-n", "1", "--json", "steps=7", "strategy.kind=ddp", "--resume",
                                      f"checkpoint.directory={self.shared}/{workers}")
                self.assertEqual(self.records(resumed)[0]["steps"], 7)

    def test_a_trace_is_on_one_clock(self):
        """Of hosts whose wall clocks differ, and whose machines were started at other times."""
        later = f'[ "$host" != {self.name}-2 ] || later="--time --fork --kill-child --monotonic 5"\n'
        script = self.on_host.read_text().replace("unshare -m sh", "unshare -m $later sh", 1)
        self.on_host.write_text(script.replace("exec ", later + "exec ", 1))
        recipe, way = WAYS["pipeline"]
        self.records(self.on_two_hosts(*recipe, *way, "checkpoint.directory=", "--trace", str(self.folder / "out.json"),
                                       environment=self.clock_ahead(1)))
        # the clocks are seconds apart; how exact they are compared depends on how busy the machine is
        self.assert_causal(self.folder / "out.json", slack_us=2000)

    def test_delayed_gradients_are_those_of_one_host(self):
        """To the bit; what one process makes of these delays: tests/unit/train/pipedream_test.cc."""
        way = (*GPT[:-2], "precision=float64", "strategy.pipeline=2", "strategy.schedule=ddg", "strategy.period=3")
        beside, _ = self.records(self.stormo("train", *way, "-n", "2", "--json", "checkpoint.directory="))
        end, _ = self.run_over_the_network(way[:1], *way[1:])
        self.assertEqual(end["weights_hash"], beside["weights_hash"])

    def test_logical_shards_have_the_bits_of_any_ranks_of_one_host(self):
        shards = ("mlp.toml", "train.logical_shards=5", "threads=1")
        end, _ = self.run_over_the_network(shards[:1], *shards[1:])
        for ranks in ("1", "3"):
            beside, _ = self.records(self.stormo("train", *shards, "-n", ranks, "--json", "checkpoint.directory="))
            self.assertEqual(beside["weights_hash"], end["weights_hash"], ranks)



class SlowLine(HostsTest):
    """A line that is much slower than the computations, so that its rate says what a step takes."""
    RATE = "50mbit"
    TOPOLOGY = f"""topology v1
hosts 1 1
intra latency_s=5e-07 byte_s=1e-10
inter latency_s=5e-05 byte_s={8 / (50e6 * 1448 / 1514)}
reduce byte_s=1e-10
"""  # of a frame of 1514 bytes 1448 are payload
    BATCH = 4  # few messages: on a busy machine each waits for its receiver
    RECIPE = ("mlp.toml", "model.sizes=[784, 1024, 1024, 10]", f"global_batch={BATCH}", "checkpoint.directory=")

    def seconds(self, keys, steps):
        """Of the fastest step, as other processes may use the machine; without the first ones, in which ways to
        overlap are tried."""
        done = self.on_two_hosts(*self.RECIPE, f"steps={steps}", *keys)
        self.assertEqual(done.returncode, 0, done.stderr)
        records = [json.loads(line) for line in done.stdout.splitlines()]
        rates = [r["samples_per_s"] for r in records if r["event"] == "step"]
        return self.BATCH / max(rates[len(rates) // 2:])

    def test_the_way_that_a_search_finds_is_faster_than_replicas_which_take_as_long_as_it_says(self):
        (self.folder / "line.topology").write_text(self.TOPOLOGY)
        found = self.stormo("plan", "search", *self.RECIPE, "-n", "2", "--hosts", "2", "--topology", "line.topology",
                            "--gflops", "20", "--json")
        self.assertEqual(found.returncode, 0, found.stderr)
        *ways, _ = map(json.loads, found.stdout.splitlines())
        cut = re.compile("kind=fsdp|pipeline=|tensor=|context=")
        replicas = next(way for way in ways if not cut.search(" ".join(way["keys"])))
        self.assertGreater(replicas["seconds"] / ways[0]["seconds"], 4)
        measured = self.seconds(replicas["keys"], steps=10)
        self.assertLess(abs(replicas["seconds"] / measured - 1), 0.15, (replicas, measured))
        self.assertGreater(measured / self.seconds(ways[0]["keys"], steps=10), 2, ways[0])


if __name__ == "__main__":
    main()
