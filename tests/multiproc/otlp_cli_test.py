"""A run of `stormo train` tells a collector of OpenTelemetry, which cannot hold it up.

Usage: FILE PATH_OF_STORMO PATH_OF_REPOSITORY
"""

import http.server
import json
import socket
import threading
import time

from train_cli import DEADLINE_S, TrainTest, main

RUN = ("mlp.toml", "steps=12", "log_every=4", "--json")


class Collector(http.server.ThreadingHTTPServer):
    """Keeps what it is sent, and answers as it is told: (status, headers) for each request, the last one for the rest."""

    def __init__(self, answers=((200, {}),)):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests, self.arrived = list(answers), [], threading.Condition()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def bodies(self, path):
        return [body for at, _, body, _ in self.requests if at == path]

    def times(self, path):
        return [when for at, _, _, when in self.requests if at == path]

    def events(self):
        return [record["eventName"] for body in self.bodies("/v1/logs") for resource in body["resourceLogs"]
                for scope in resource["scopeLogs"] for record in scope["logRecords"]]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.arrived:
            self.server.requests.append((self.path, self.headers, body, time.monotonic()))
            status, headers = self.server.answers[0]
            if len(self.server.answers) > 1:
                self.server.answers.pop(0)
            self.server.arrived.notify_all()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def attributes(of):
    return {a["key"]: a["value"] for a in of["attributes"]}


class OtlpTest(TrainTest):
    def collector(self, *answers):
        collector = Collector(answers or ((200, {}),))
        self.addCleanup(collector.server_close)
        self.addCleanup(collector.shutdown)
        return collector

    def train(self, url, *more, environment=None):
        done = self.stormo("train", *RUN, "--overwrite", "--otlp", url, *more, environment=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["event"], "end")
        return done

    def test_metrics_and_events_arrive(self):
        collector = self.collector()
        self.train(collector.url + "/", "-n", "2", environment={
            "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b", "OTEL_RESOURCE_ATTRIBUTES": "team=birds,service.name=mine"})
        self.assertEqual(collector.events()[0], "stormo.start")
        self.assertEqual(collector.events()[-1], "stormo.end")
        *_, last = collector.bodies("/v1/metrics")
        resource, = last["resourceMetrics"]
        of = attributes(resource["resource"])
        self.assertEqual(of["service.name"], {"stringValue": "mine"})
        self.assertEqual(of["team"], {"stringValue": "birds"})
        self.assertIn("host.name", of)
        metrics = {m["name"]: m for scope in resource["scopeMetrics"] for m in scope["metrics"]}
        steps, = metrics["stormo_steps_total"]["sum"]["dataPoints"]
        self.assertEqual(steps["asDouble"], 12)
        self.assertGreater(int(steps["timeUnixNano"]), int(steps["startTimeUnixNano"]))
        times, = metrics["stormo_step_duration_seconds"]["histogram"]["dataPoints"]
        self.assertEqual(times["count"], "12")
        self.assertEqual(sum(map(int, times["bucketCounts"])), 12)
        for _, headers, _, _ in collector.requests:
            self.assertEqual(headers["x-key"], "a b")
            self.assertEqual(headers["Content-Type"], "application/json")

    def test_a_collector_that_is_away_changes_nothing_and_is_told_of(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = self.train(nobody)
        self.assertIn(f"--otlp: {nobody}/v1/logs: ", done.stderr)
        self.assertRegex(done.stderr, r"--otlp: \d+ events did not reach the collector")

    def test_a_collector_that_hangs_does_not_hold_up_the_end(self):
        with socket.create_server(("127.0.0.1", 0)) as hangs:  # accepts, and says nothing
            done = self.train(f"http://127.0.0.1:{hangs.getsockname()[1]}")
        self.assertRegex(done.stderr, r"--otlp: \d+ events did not reach the collector")

    def test_what_a_collector_refuses_is_lost_and_said(self):
        for status in (400, 500):
            with self.subTest(status=status):
                collector = self.collector((status, {}))
                done = self.train(collector.url)
                self.assertIn(f"HTTP {status}", done.stderr)
                self.assertEqual(done.stderr.count("/v1/logs: HTTP"), 1)
                self.assertIn("events did not reach the collector", done.stderr)
                events = collector.events()
                self.assertEqual(events.count("stormo.start"), 1, events)  # not sent again

    def test_a_collector_that_is_busy_is_asked_again_when_it_says(self):
        collector = self.collector((429, {"Retry-After": "1"}), (200, {}))
        run = self.start("mlp.toml", "steps=1000000", "--otlp", collector.url)
        with collector.arrived:
            again = collector.arrived.wait_for(lambda: len(collector.times("/v1/logs")) > 1, DEADLINE_S)
        self.assertTrue(again)
        run.terminate()
        run.communicate(timeout=DEADLINE_S)
        first, second, *_ = collector.times("/v1/logs")
        self.assertGreaterEqual(second - first, 1)

    def test_wrong_words_are_refused(self):
        for words, environment, what in (
                (("--otlp", "collector:4318"), {}, "write http://HOST:4318"),
                (("--otlp", "http://a:1"), {"OTEL_EXPORTER_OTLP_HEADERS": "key"}, "OTEL_EXPORTER_OTLP_HEADERS"),
                (("--otlp", "http://a:1"), {"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "give milliseconds")):
            with self.subTest(words=words):
                done = self.stormo("train", *RUN, *words, environment=environment)
                self.assertEqual(done.returncode, 2)
                self.assertIn(what, done.stderr)


if __name__ == "__main__":
    main()
