#include <stormo/plan/topology.h>

#include <gtest/gtest.h>

namespace stormo::plan {
namespace {

const Link kInside{5e-7, 1e-10};
const Link kBetween{2e-5, 8e-9};

TEST(Topology, UniformNumbersRanksHostByHost) {
  const Topology t = Topology::uniform(2, 3, kInside, kBetween, 1e-10);
  EXPECT_EQ(t.hosts(), 2);
  EXPECT_EQ(t.ranks(), 6);
  EXPECT_EQ(t.host_of_ranks(), (std::vector<int>{0, 0, 0, 1, 1, 1}));
}

TEST(Topology, HostsMayDiffer) {
  const Topology t{{1, 3}, kInside, kBetween, 0};
  EXPECT_EQ(t.host_of_ranks(), (std::vector<int>{0, 1, 1, 1}));
}

TEST(Topology, TextRoundTripsToTheLastBit) {
  const Topology t{{2, 5}, {1.0 / 3, 1e-300}, kBetween, 0.1};
  const auto parsed = parse_topology(to_text(t));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, t);
  EXPECT_EQ(hash(*parsed), hash(t));
  EXPECT_EQ(to_text(Topology::uniform(2, 2, kInside, kBetween, 1e-10)),
            "topology v1\nhosts 2 2\nintra latency_s=5e-07 byte_s=1e-10\n"
            "inter latency_s=2e-05 byte_s=8e-09\nreduce byte_s=1e-10\n");
}

TEST(Topology, ParserRefusesWhatIsNoTopology) {
  const std::string tail =
      "intra latency_s=0 byte_s=0\ninter latency_s=0 byte_s=0\nreduce byte_s=0\n";
  EXPECT_TRUE(parse_topology("topology v1\nhosts 1\n" + tail).ok());
  EXPECT_EQ(parse_topology("topology v1\nhosts 1 0\n" + tail).status().message(),
            "2:9: the number of ranks on a host must be in 1..65536");
  EXPECT_FALSE(parse_topology("topology v1\nhosts 65536 1\n" + tail).ok());
  EXPECT_FALSE(parse_topology("topology v1\nhosts\n" + tail).ok());
  EXPECT_FALSE(parse_topology("topology v1\nhosts 1\n").ok());
  for (const char* wrong : {"-1", "nan", "inf", "1e999", "x"}) {
    const std::string text = "topology v1\nhosts 1\nintra latency_s=" + std::string(wrong) +
                             " byte_s=0\ninter latency_s=0 byte_s=0\nreduce byte_s=0\n";
    EXPECT_EQ(parse_topology(text).status().message(),
              "3:17: latency_s must be a finite number >= 0")
        << wrong;
  }
}

}  // namespace
}  // namespace stormo::plan
