// What `stormo bench servers` makes of its flags, and what --sparse measures with.
#include <cli/bench/servers/options.h>
#include <cli/bench/servers/sparse.h>
#include <cli/bench/servers/sparse_samples.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace stormo::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BenchServersOptions, ListsEverythingWrong) {
  ServersArguments a;
  a.servers = 5000;
  a.bytes = {"4K", "9", "0", "much", "1000T"};
  a.seconds = "1parsec";
  a.launch.hosts = "a:1";
  const std::string text = to_servers_options(a).status().message();
  for (const char* part : {"--servers", "9 is no multiple of 4", "0 is no multiple", "much",
                           "1parsec", "--hosts", "of memory are available"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(BenchServersOptions, NeedAWorkerAndEqualSharesForServerProcesses) {
  ServersArguments a;
  a.servers = 4;
  a.launch.ranks = 3;
  a.processes = 2;
  EXPECT_TRUE(to_servers_options(a).ok());
  a.launch.ranks = 2;
  EXPECT_THAT(to_servers_options(a).status().message(), HasSubstr("leave no worker"));
  a.beside = true;
  EXPECT_TRUE(to_servers_options(a).ok());
  a.processes = 3;
  EXPECT_THAT(to_servers_options(a).status().message(), HasSubstr("cannot be divided equally"));
  a.processes = 0;
  EXPECT_THAT(to_servers_options(a).status().message(), HasSubstr("--beside: needs"));
}

TEST(BenchServersOptions, TakeSizesAndTimes) {
  ServersArguments a;
  a.servers = 3;
  a.bytes = {"4K", "1M"};
  a.seconds = "50ms";
  const auto options = to_servers_options(a).take_or_throw();
  EXPECT_EQ(options.servers, 3);
  EXPECT_THAT(options.bytes, ElementsAre(4096, 1 << 20));
  EXPECT_DOUBLE_EQ(options.seconds, 0.05);
}

TEST(SparseSamples, HaveDistinctFeaturesAndBothLabels) {
  for (const FeatureKind kind : {FeatureKind::kUniform, FeatureKind::kSkewed}) {
    const SparseSamples samples(kind, 1);
    double positive = 0, low = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const SparseSamples::Sample s = samples.sample(i);
      ASSERT_EQ(s.features.size(), kNonZeros);
      ASSERT_EQ(std::ranges::adjacent_find(s.features, std::greater_equal<>()), s.features.end());
      ASSERT_GE(s.features.front(), 0);
      ASSERT_LT(s.features.back(), kFeatures);
      positive += s.label;
      low += static_cast<double>(
          std::ranges::count_if(s.features, [](auto f) { return f < kFeatures / 16; }));
    }
    const auto count = static_cast<double>(samples.size());
    EXPECT_NEAR(positive / count, 0.5, 0.25);
    // of features with density x^(-3/4), half lie below (1/2)^4; repeated ones are drawn again
    EXPECT_NEAR(low / (count * kNonZeros), kind == FeatureKind::kUniform ? 1.0 / 16 : 0.5, 0.02);
  }
}

TEST(BenchServers, WorkersOfASparseShardLearn) {
  const auto right =
      run_sparse_workers({.servers = 1, .bytes = {}, .seconds = 0.02, .rounds = 1}, 2, true);
  ASSERT_TRUE(right.ok()) << right.status().to_string();
  EXPECT_TRUE(*right);
}

}  // namespace
}  // namespace stormo::cli
