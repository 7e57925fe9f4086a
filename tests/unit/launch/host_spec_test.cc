#include <stormo/launch/host_spec.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stormo::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseHosts, Grammar) {
  const auto hosts = parse_hosts("a:2,b,user@c.example:16,[fd00::2]:4,localhost:1");
  ASSERT_TRUE(hosts.ok()) << hosts.status().to_string();
  EXPECT_THAT(*hosts,
              ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 1}, HostSlots{"user@c.example", 16},
                          HostSlots{"fd00::2", 4}, HostSlots{"localhost", 1}));
}

TEST(ParseHosts, ListsEverythingThatIsWrong) {
  const auto hosts = parse_hosts("a:0,:2,,b:x,a b:1,c,c:2,-oProxyCommand=x:1,fd00::2:4,d:2x");
  ASSERT_FALSE(hosts.ok());
  EXPECT_EQ(hosts.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(hosts.status().message(),
              AllOf(HasSubstr("'a:0'"), HasSubstr("':2'"), HasSubstr("is empty"),
                    HasSubstr("'b:x'"), HasSubstr("'a b'"), HasSubstr("'c' is listed twice"),
                    HasSubstr("-oProxyCommand"), HasSubstr("in brackets"), HasSubstr("'d:2x'")));
}

TEST(PlaceRanks, FillsHostAfterHost) {
  const std::vector<HostSlots> hosts{{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_THAT(*place_ranks(std::nullopt, hosts),
              ElementsAre(HostShare{"a", 0, 2}, HostShare{"b", 2, 3}, HostShare{"c", 5, 1}));
  EXPECT_THAT(*place_ranks(3, hosts), ElementsAre(HostShare{"a", 0, 2}, HostShare{"b", 2, 1}));
  EXPECT_THAT(*place_ranks(5, {}), ElementsAre(HostShare{"localhost", 0, 5}));
}

TEST(PlaceRanks, RefusesWhatCannotBe) {
  const std::vector<HostSlots> hosts{{"a", 2}};
  EXPECT_THAT(place_ranks(3, hosts).status().message(), HasSubstr("2 slots of -H"));
  EXPECT_THAT(place_ranks(0, hosts).status().message(), HasSubstr("-n 0"));
  EXPECT_THAT(place_ranks(-1, {}).status().message(), HasSubstr("1 to 4096"));
  EXPECT_THAT(place_ranks(std::nullopt, {}).status().message(), HasSubstr("-n"));
  EXPECT_THAT(place_ranks(100000, {}).status().message(),
              AllOf(HasSubstr("-n 100000"), HasSubstr("memory"), HasSubstr("processes")));
  EXPECT_FALSE(place_ranks(std::nullopt, {{"a", 4096}, {"b", 1}}).ok());
}

}  // namespace
}  // namespace stormo::launch
