// What collectives do between hosts: bytes on the wire, and times against models and each other.
// Hosts are network namespaces with links of 1 Gbit/s, shaped in both directions by tools/hosts.
// Times are the least of several rounds in turns: a busy machine only adds to them. There is one
// attempt. Its burst lets up to 128 KiB pass at once, so bandwidth is claimed of buffers of 8 MiB
// and more.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <optional>
#include <sstream>

#include <stormo/analysis/schedule/simulate.h>
#include <stormo/plan/topology.h>
#include <stormo/schedule/builders.h>
#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using Words = std::vector<std::string>;
using Figures = std::map<std::string, std::vector<double>>;  // by task

constexpr std::int64_t kLarge = 8 << 20;
constexpr double kSmallGain = 1.8;

class Hosts : public ::testing::Test {
 protected:
  /// Makes the hosts; skips the test where that is not possible.
  void make(int hosts, int ranks_per_host) {
    hosts_.emplace(hosts, Words{"--rate", "1gbit"});
    if (!hosts_->problem().empty()) GTEST_SKIP() << "root: " << hosts_->problem();
    name_ = hosts_->name();
    for (int i = 1; i <= hosts; ++i)
      list_ += (i > 1 ? "," : "") + name_ + "-" + std::to_string(i) + ":" +
               std::to_string(ranks_per_host);
    topology_.host_sizes.assign(static_cast<std::size_t>(hosts), ranks_per_host);
  }

  Figures measure(const Words& tasks, int sockets = 1) const {
    Words words = {built("stormo"),
                   "run",
                   "-H",
                   list_,
                   "--remote-shell",
                   "ip netns exec {host}",
                   "--interface",
                   name_ + "br,eth0",
                   "--output",
                   "raw",
                   "--",
                   built("hosts_worker")};
    words.insert(words.end(), tasks.begin(), tasks.end());
    words.insert(words.begin() + 2, {"--sockets", std::to_string(sockets)});
    const Outcome o = run_to_end(words);
    EXPECT_EQ(o.status, 0) << o.err;
    Figures figures;
    for (const std::string& line : split_lines(o.out)) {
      std::istringstream in(line);
      std::string task;
      in >> task;
      for (double value = 0; in >> value;) figures[task].push_back(value);
    }
    for (const std::string& task : tasks) {
      EXPECT_FALSE(figures[task].empty()) << task;
      figures[task].resize(2);
    }
    return figures;
  }

  /// `wrong` says what is wrong with the figures; empty: nothing.
  void expect(const Words& tasks, const std::function<std::string(Figures&)>& wrong) const {
    Figures figures = measure(tasks);
    EXPECT_EQ(wrong(figures), "");
  }

  /// Seconds that the simulator predicts on these hosts' links.
  double predicted(const std::string& algorithm, std::int64_t bytes,
                   const std::vector<double>& probe) const {
    plan::Topology t = topology_;
    t.intra = {1e-6, 2e-10};
    t.inter = {probe[0], probe[1]};
    t.reduce_seconds_per_byte = 1e-10;
    const auto builder = schedule::find_builder(algorithm);
    const auto s = (*builder)->build({.ranks = t.ranks(), .hosts = t.host_sizes});
    ManualClock clock;
    const auto simulation = analysis::simulate(*s, t, bytes, clock, analysis::Timeline::kDrop);
    return std::chrono::duration<double>(simulation.duration).count();
  }

  std::optional<MadeHosts> hosts_;
  std::string name_;
  std::string list_;
  plan::Topology topology_;
};

std::string task(const std::string& kind, const std::string& algorithm, std::int64_t bytes) {
  return kind + ":" + algorithm + ":" + std::to_string(bytes);
}

/// What is wrong with `measured`; empty when it lies between the bounds.
std::string outside(const std::string& what, double measured, double least, double most) {
  if (measured >= least && measured <= most) return "";
  std::ostringstream out;
  out << what << ": " << measured << " is not between " << least << " and " << most << "; ";
  return out.str();
}

/// B3: the interfaces carry 2(h-1)/h K per host and little else. And the simulator knows how long
/// that takes.
TEST_F(Hosts, FourSendNoMoreThanTheyMustForAsLongAsPredicted) {
  make(4, 1);
  if (IsSkipped()) return;
  const std::string wire = task("wire", "ring_all_reduce", kLarge);
  const std::vector<std::string> algorithms = {"ring_all_reduce", "halving_doubling_all_reduce",
                                               "binomial_all_reduce"};
  Words tasks = {"probe", wire};
  for (const auto& algorithm : algorithms) tasks.push_back(task("time", algorithm, kLarge));
  expect(tasks, [&](Figures& f) {
    const double bound = 2.0 * 3 / 4 * kLarge;
    std::string wrong = outside(wire, f[wire][0], bound, 1.02 * bound);
    for (const auto& algorithm : algorithms) {
      const double time = predicted(algorithm, kLarge, f["probe"]);
      wrong += outside(algorithm, f[task("time", algorithm, kLarge)][0], time / 1.25, 1.25 * time);
    }
    return wrong;
  });
}

/// B5: hosts of several ranks send as little as hosts of one; a flat ring is slower.
TEST_F(Hosts, HierarchicalBeatsTheFlatRing) {
  make(2, 2);
  if (IsSkipped()) return;
  constexpr std::int64_t kSmall = 4 << 10;
  const std::string wire = task("wire", "hierarchical_all_reduce", kLarge);
  const std::string small = task("time", "leader_all_reduce", kSmall);
  const std::string small_ring = task("time", "ring_all_reduce", kSmall);
  const std::string large = task("time", "hierarchical_all_reduce", kLarge);
  const std::string large_ring = task("time", "ring_all_reduce", kLarge);
  expect({wire, "probe", small, small_ring, large, large_ring}, [&](Figures& f) {
    const double time = predicted("hierarchical_all_reduce", kLarge, f["probe"]);
    return outside(wire, f[wire][0], kLarge, 1.02 * kLarge) +
           outside(large, f[large][0], time / 1.25, 1.25 * time) +
           outside("ring over leader", f[small_ring][0] / f[small][0], kSmallGain, 1e9) +
           outside("ring over hierarchical", f[large_ring][0] / f[large][0], 1.3, 1e9);
  });
}

/// A14: process sets on disjoint links do not wait for each other.
TEST_F(Hosts, DisjointSetsTakeTheTimeOfOne) {
  make(4, 1);
  if (IsSkipped()) return;
  const std::string sets = "sets:" + std::to_string(kLarge);
  expect({sets}, [&](Figures& f) {
    return outside("both sets over one", f[sets][1] / f[sets][0], 0.5, 1.25);
  });
}

/// B11: where each flow gets only a part of the line, four sockets carry at least three times as
/// much as one.
TEST_F(Hosts, FourSocketsCarryThriceAsMuchAsOneCappedFlow) {
  make(2, 1);
  if (IsSkipped()) return;
  // Flows fall into 64 classes of 100 Mbit/s by the port of the calling side, which is host 2. It
  // has 64 ports for its calls, and the kernel gives calls to one address different ones.
  const Outcome ports =
      run_to_end({"/bin/sh", "-c",
                  "ip netns exec " + name_ +
                      "-2 sh -c 'echo 40000 40063 > /proc/sys/net/ipv4/ip_local_port_range'"});
  if (ports.status != 0) GTEST_SKIP() << "machine: cannot choose ports: " << ports.err;
  for (const auto& [host, port] : {std::pair("1", "dport"), std::pair("2", "sport")}) {
    std::string script = "tc qdisc replace dev eth0 root handle 1: htb default 65";
    script += " && (for i in $(seq 64); do";
    script += " echo class add dev eth0 parent 1: classid 1:$(printf %x $i)";
    script += " htb rate 100mbit ceil 100mbit burst 64k cburst 64k quantum 60000;";
    script += " echo filter add dev eth0 parent 1: protocol ip u32 match ip ";
    script += std::string(port) + " $((i - 1)) 0x003f flowid 1:$(printf %x $i);";
    script += " done) | tc -batch -";
    const Outcome o = run_to_end(
        {"/bin/sh", "-c", "ip netns exec " + name_ + "-" + host + " sh -c '" + script + "'"});
    if (o.status != 0) GTEST_SKIP() << "machine: cannot cap flows: " << o.err;
  }
  const std::string ring = task("time", "ring_all_reduce", 4 << 20);
  const double one = measure({ring})[ring][0], four = measure({ring}, 4)[ring][0];
  EXPECT_EQ(outside("four sockets over one", one / four, 3, 5), "");
}

/// B4: below the crossover that the probe's latency a and time per byte b give, the tree's
/// 2 log2 n (a + K b) is less than the ring's 2(n-1) a + 2(n-1)/n K b.
TEST_F(Hosts, ATreeBeatsTheRingBelowTheFittedCrossover) {
  make(8, 1);
  if (IsSkipped()) return;
  const std::vector<double> probe = measure({"probe"})["probe"];
  const double crossover = (14.0 - 6.0) / (6.0 - 14.0 / 8) * probe[0] / probe[1];
  const auto bytes = static_cast<std::int64_t>(crossover / 4) / 32 * 32;
  const std::string tree = task("time", "binomial_all_reduce", bytes);
  const std::string ring = task("time", "ring_all_reduce", bytes);
  expect({tree, ring},
         [&](Figures& f) { return outside("ring over tree", f[ring][0] / f[tree][0], 1, 1e9); });
}

}  // namespace
}  // namespace stormo::testing
