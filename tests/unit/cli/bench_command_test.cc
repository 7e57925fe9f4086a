// What `stormo bench` makes of flags, and of what contenders measured.
#include <cli/bench/chart.h>
#include <cli/bench/contenders.h>
#include <cli/bench/mpi.h>
#include <cli/bench/rounds.h>
#include <cli/bench/table.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace stormo::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const bench::OperationFacts& kAllReduce = bench::facts_of(bench::Operation::kAllReduce);

TEST(BenchOptions, ListsEverythingWrong) {
  BenchArguments a;
  a.bytes = {"8", "9", "many"};
  a.seconds = "soon";
  a.against = {"nccl"};
  a.rate = "fast";
  a.launch.bind = "tight";
  const std::string text = to_bench_options(a, kAllReduce).status().message();
  for (const char* part : {"9 is no multiple of 4", "'many' is not a size", "'soon'", "'nccl'",
                           "--rate: only", "'fast' is not a rate", "--bind"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(BenchOptions, KnowsWhenToRunRounds) {
  BenchArguments a;
  EXPECT_FALSE(to_bench_options(a, kAllReduce).take_or_throw().in_rounds(a));
  a.against = {"openmpi"};
  EXPECT_EQ(to_bench_options(a, kAllReduce).take_or_throw().rounds, 7);
  EXPECT_TRUE(to_bench_options(a, kAllReduce).take_or_throw().in_rounds(a));
  a.against = {};
  a.launch.hosts = "4";
  a.rate = "1gbit";
  EXPECT_EQ(to_bench_options(a, kAllReduce).take_or_throw().namespaces, 4);
  a.launch.hosts = "a:1,b:1";
  EXPECT_FALSE(to_bench_options(a, kAllReduce).ok());
  EXPECT_NEAR(payload_rate("1gbit"), 119.6e6, 0.1e6);
  EXPECT_EQ(payload_rate("1g"), 0);
}

TEST(BenchOptions, SizesMustFitTheType) {
  BenchArguments a;
  a.bytes = {"2"};
  a.dtype = "bfloat16";
  EXPECT_TRUE(to_bench_options(a, kAllReduce).ok());
  a.dtype = "float64";
  EXPECT_FALSE(to_bench_options(a, kAllReduce).ok());
  a.dtype = "bool";
  EXPECT_FALSE(to_bench_options(a, kAllReduce).ok());
}

TEST(BenchContenders, OpenMpiNeverSpinsTwiceOnACore) {
  BenchSite site{.ranks = 2, .hosts = 1, .cores = 2};
  EXPECT_THAT(openmpi_flags(site), Contains("core"));
  site.ranks = 3;
  EXPECT_THAT(openmpi_flags(site), Contains("mpi_yield_when_idle"));
  site.ranks = 2;
  site.hosts = 2;
  site.namespaces = true;
  site.launch.interface = "br0,eth0";
  EXPECT_THAT(openmpi_flags(site), Contains("mpi_yield_when_idle"));
  EXPECT_THAT(openmpi_flags(site), Contains("self,vader,tcp"));
  EXPECT_THAT(openmpi_flags(site), Contains("eth0"));
  site.namespaces = false;
  EXPECT_THAT(openmpi_flags(site), Not(Contains("mpi_yield_when_idle")));
}

TEST(BenchContenders, KnowRemoteShellsThatStayOnThisMachine) {
  EXPECT_TRUE(enters_namespaces("/opt/stormo/bin/hosts exec {host}"));
  EXPECT_TRUE(enters_namespaces("ip netns exec {host}"));
  EXPECT_TRUE(enters_namespaces("sudo /sbin/ip netns exec {host} nice"));
  EXPECT_FALSE(enters_namespaces("ssh -o BatchMode=yes {host}"));
  EXPECT_FALSE(enters_namespaces(""));
}

/// Two contenders, three rounds, two sizes.
RoundResults<bench::Measurement> three_rounds() {
  const auto m = [](std::uint64_t bytes, double p50, bool verified = true) {
    bench::Measurement one{.operation = "all_reduce", .ranks = 2, .bytes = bytes, .p50_s = p50};
    one.p90_s = one.p99_s = 2 * p50;
    one.algbw = one.busbw = static_cast<double>(bytes) / p50;
    one.verified = verified;
    one.iterations = 10;
    one.algorithm = "ring_all_reduce";
    return one;
  };
  RoundResults<bench::Measurement> r(2);
  r[0] = {{m(8, 1e-6), m(1 << 20, 1e-3)},
          {m(8, 2e-6), m(1 << 20, 1e-3)},
          {m(8, 1e-6), m(1 << 20, 1e-3)}};
  r[1] = {{m(8, 3e-6), m(1 << 20, 2e-3)},
          {m(8, 8e-6), m(1 << 20, 1e-3)},
          {m(8, 2e-6), m(1 << 20, 4e-3, false)}};
  return r;
}

std::vector<BenchRow> rows() {
  return rows_of({{.name = "stormo"}, {.name = "openmpi"}}, three_rounds(), "1gbit");
}

TEST(BenchRounds, MergeIntoMediansAndRatios) {
  const auto all = rows();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].rounds, 3);
  EXPECT_DOUBLE_EQ(all[0].ours.p50_s, 1e-6);
  EXPECT_EQ(all[0].ours.iterations, 30);
  EXPECT_DOUBLE_EQ(all[0].against[0].ratio.median, 3);
  EXPECT_DOUBLE_EQ(all[0].against[0].ratio.min, 2);
  EXPECT_DOUBLE_EQ(all[0].against[0].ratio.max, 4);
  EXPECT_TRUE(all[0].against[0].theirs.verified);
  EXPECT_FALSE(all[1].against[0].theirs.verified) << "one wrong round is enough";
}

TEST(BenchTable, HasWhatWasMeasured) {
  const std::string text = bench_table(rows());
  EXPECT_THAT(text, HasSubstr("ring_all_reduce\n")) << "the algorithm ends a line";
  EXPECT_THAT(text, HasSubstr("openmpi"));
  EXPECT_THAT(text, HasSubstr("3.00     2.00     4.00"));
  EXPECT_THAT(text, HasSubstr("THEIRS WRONG"));
  const auto json = nlohmann::json::parse(row_json(rows()[0]));
  EXPECT_EQ(json["bytes"], 8);
  EXPECT_EQ(json["against"]["openmpi"]["ratio_max"], 4);
  EXPECT_EQ(json["rounds"], 3);
  EXPECT_TRUE(json.contains("line"));
  EXPECT_EQ(short_time(1.234e-6), "1.23 us");
  EXPECT_EQ(short_time(99.96e-6), "100 us");
  EXPECT_EQ(short_time(0.99961), "1.00 s");
}

TEST(BenchChart, DrawsEveryPointOfEveryContender) {
  const std::string svg = bench_chart("a < b & c", rows());
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  EXPECT_THAT(svg, HasSubstr("<title>openmpi, 1 MiB: 2.00 ms</title>"));
  int points = 0;
  const std::string point = "r=\"3.5\"";
  for (std::size_t at = svg.find(point); at != std::string::npos; at = svg.find(point, at + 1))
    ++points;
  EXPECT_EQ(points, 8);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(BenchChart, OneSizeIsAChartToo) {
  auto one = rows();
  one.resize(1);
  one[0].ours.busbw = one[0].against[0].theirs.busbw = 0;
  const std::string svg = bench_chart("x", one);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("bus bandwidth")));
}

}  // namespace
}  // namespace stormo::cli
