// What `stormo bench servers` makes of its flags.
#include <cli/bench/servers/options.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stormo::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BenchServersOptions, ListsEverythingWrong) {
  ServersArguments a;
  a.servers = 0;
  a.bytes = {"4K", "9", "0", "much"};
  a.seconds = "1parsec";
  a.rounds = 0;
  a.launch.hosts = "a:1";
  const std::string text = to_servers_options(a).status().message();
  for (const char* part : {"--servers", "9 is no multiple of 4", "0 is no multiple", "much",
                           "1parsec", "--rounds", "--hosts"})
    EXPECT_THAT(text, HasSubstr(part));
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

}  // namespace
}  // namespace stormo::cli
