#include <cli/doctor/hosts/cluster.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cli/doctor/hosts/link.h>

namespace stormo::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LinkMeasurement good_link() {
  return {.problem = {},
          .is_encrypted = true,
          .mtu = 1500,
          .round_trip_seconds = 1e-4,
          .clock_ahead_seconds = 0,
          .bytes_per_second = 1e9};
}

/// Equal hosts a, b, c with equal links.
Cluster good() {
  Cluster c;
  for (const char* name : {"a", "b", "c"})
    c.hosts.push_back({.name = name,
                       .slots = 2,
                       .problem = {},
                       .summary = HostSummary{.version = "1.0",
                                              .protocol = 3,
                                              .torch = "2.13.0",
                                              .kernel = "Linux 6.1",
                                              .usable_cores = 2}});
  for (int from = 0; from < 3; ++from)
    for (int to = 0; to < 3; ++to)
      if (from != to) c.links.push_back({from, to, good_link()});
  return c;
}

ClusterLink& link(Cluster& c, int from, int to) {
  for (ClusterLink& l : c.links)
    if (l.from == from && l.to == to) return l;
  throw std::out_of_range("no such link");
}

void expect_one(const Cluster& c, const std::string& what, const std::vector<std::string>& hosts,
                bool fatal) {
  const auto found = findings(c);
  ASSERT_EQ(found.size(), 1u) << what;
  EXPECT_THAT(found[0].finding.what, HasSubstr(what));
  EXPECT_EQ(found[0].hosts, hosts);
  EXPECT_EQ(found[0].finding.fatal, fatal);
  EXPECT_FALSE(found[0].finding.why.empty());
  EXPECT_FALSE(found[0].finding.remedy.empty());
}

TEST(ClusterFindings, EqualHostsHaveNone) { EXPECT_THAT(findings(good()), IsEmpty()); }

TEST(ClusterFindings, EachProblemIsFoundAlone) {
  Cluster c = good();
  c.hosts[1].problem = "the remote shell ended with exit status 255";
  c.hosts[1].summary.reset();
  expect_one(c, "does not answer: the remote shell ended with exit status 255", {"b"}, true);
  c = good();
  link(c, 1, 2).measured.problem = "connect: Connection refused";
  expect_one(c, "b to c: connect: Connection refused", {"b", "c"}, true);
  c = good();
  c.hosts[2].slots = 3;
  expect_one(c, "3 ranks on 2 cores", {"c"}, false);
  c = good();
  c.hosts[0].summary->torch = "2.12.0";
  expect_one(c, "libtorch differs: 2.12.0 on a; 2.13.0 on b, c", {"a", "b", "c"}, false);
  c = good();
  c.hosts[1].summary->kernel = "Linux 5.15";
  expect_one(c, "the kernel differs: Linux 5.15 on b; Linux 6.1 on a, c", {"b", "a", "c"}, false);
  c = good();
  c.hosts[1].summary->protocol = 4;
  expect_one(c, "1.0 (protocol 4) on b", {"a", "c", "b"}, false);
  c = good();
  link(c, 2, 0).measured.bytes_per_second = 4e8;
  expect_one(c, "c to a: 381.5 MiB/s", {"c", "a"}, false);
  c = good();
  link(c, 0, 1).measured.mtu = 9000;
  expect_one(c, "1500 bytes on some links, 9000 on others", {}, false);
}

TEST(ClusterFindings, WhatSeveralHostsFindIsSaidOnceAndTheWorstFirst) {
  Cluster c = good();
  const Finding slow = {false, "one core", "turns", "more cores"};
  const Finding broken = {true, "no memfd", "old", "upgrade"};
  c.hosts[0].summary->found = {slow};
  c.hosts[2].summary->found = {slow, broken};
  const auto found = findings(c);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].finding, broken);
  EXPECT_THAT(found[0].hosts, ElementsAre("c"));
  EXPECT_EQ(found[1].finding, slow);
  EXPECT_THAT(found[1].hosts, ElementsAre("a", "c"));
}

TEST(Clocks, AreComparedWithTheFirstHostThatAnswers) {
  Cluster c = good();
  c.hosts[0].summary.reset();
  c.hosts[0].problem = "gone";
  std::erase_if(c.links, [](const ClusterLink& l) { return l.from == 0 || l.to == 0; });
  link(c, 1, 2).measured.clock_ahead_seconds = 0.25;
  EXPECT_FALSE(clock_offset(c, 0));
  EXPECT_EQ(clock_offset(c, 1)->seconds, 0);
  EXPECT_DOUBLE_EQ(clock_offset(c, 2)->seconds, 0.25);
  EXPECT_DOUBLE_EQ(clock_offset(c, 2)->error, 5e-5);
  // only the other one could measure
  std::erase_if(c.links, [](const ClusterLink& l) { return l.from == 1; });
  link(c, 2, 1).measured.clock_ahead_seconds = -0.25;
  EXPECT_DOUBLE_EQ(clock_offset(c, 2)->seconds, 0.25);
}

TEST(Clocks, AnOffsetCountsBeyondWhatTheMeasurementMayBeWrong) {
  Cluster c = good();
  link(c, 0, 1).measured.clock_ahead_seconds = -0.2;
  expect_one(c, "its clock is 0.2 s behind that of the first host", {"b"}, false);
  link(c, 0, 1).measured.round_trip_seconds = 0.3;
  EXPECT_THAT(findings(c), IsEmpty());
}

TEST(Losses, FollowThePlacementOfTheRegister) {
  const auto text = [](const std::vector<std::string>& hosts, std::optional<int> launcher) {
    return to_text(losses_of(hosts, launcher), hosts);
  };
  EXPECT_EQ(losses_of({"a"}, 0), (Losses{{"a"}, {"a"}}));
  EXPECT_EQ(text({"a"}, 0), "the loss of a ends the job");
  EXPECT_EQ(text({"a"}, std::nullopt), "the loss of a or of the launcher's host ends the job");
  EXPECT_EQ(losses_of({"a", "b"}, 0), (Losses{{"a"}, {"a"}}));
  EXPECT_EQ(losses_of({"a", "b"}, 1), (Losses{{"b"}, {"b"}}));
  EXPECT_EQ(text({"a", "b"}, 0), "b may be lost; the loss of a ends the job");
  EXPECT_EQ(losses_of({"a", "b"}, std::nullopt), (Losses{{"a", "b", "the launcher's host"}, {}}));
  EXPECT_EQ(losses_of({"a", "b", "c", "d"}, 3), (Losses{{"a", "b", "c"}, {}}));
  EXPECT_EQ(losses_of({"a", "b", "c"}, std::nullopt), (Losses{{"a", "b", "c"}, {}}));
  EXPECT_EQ(text({"a", "b", "c"}, 0), "any one host may be lost, also that of the launcher");
}

TEST(Answers, WhatIsNoReportIsRefused) {
  for (const char* text : {"", "{}", "[1]", "no json", R"({"version": 3})"}) {
    Cluster c = good();
    c.hosts[0].summary.reset();
    EXPECT_EQ(add_answer(c, 0, text).code(), Code::kCorrupt) << text;
    EXPECT_FALSE(c.hosts[0].summary);
  }
  Cluster c = good();
  EXPECT_EQ(add_answer(c, 0, std::string(1000, '[')).code(), Code::kCorrupt);
}

TEST(Answers, AReportIsRead) {
  Cluster c = good();
  c.hosts[1].summary.reset();
  c.links.clear();
  std::string text = R"({"version": "1.0", "protocol": 3, "torch": null, "kernel": "Linux 6.1",
    "usable_cores": 4, "memory_bytes": 1024, "memory_limit_bytes": 512, "dev_shm_bytes": 64,
    "limits": {"nofile": {"soft": 1024, "hard": null}},
    "findings": [{"fatal": true, "what": "w", "why": "y", "remedy": "r"}],
    "links": [{"to": 2, "problem": "", "encrypted": true, "mtu": 1500, "round_trip_s": 0.5,
               "clock_ahead_s": -1.5, "bytes_per_s": 1e6}]})";
  ASSERT_TRUE(add_answer(c, 1, text).ok());
  const HostSummary& s = *c.hosts[1].summary;
  EXPECT_EQ(s.torch, "");
  EXPECT_EQ(s.memory_limit_bytes, 512u);
  ASSERT_EQ(s.limits.size(), 1u);
  EXPECT_EQ(s.limits[0].soft, 1024u);
  EXPECT_FALSE(s.limits[0].hard);
  EXPECT_THAT(s.found, ElementsAre(Finding{true, "w", "y", "r"}));
  ASSERT_EQ(c.links.size(), 1u);
  EXPECT_EQ(c.links[0].from, 1);
  EXPECT_EQ(c.links[0].to, 2);
  EXPECT_DOUBLE_EQ(c.links[0].measured.clock_ahead_seconds, -1.5);
  // a host that is none
  text.replace(text.find("\"to\": 2"), 7, "\"to\": 3");
  EXPECT_EQ(add_answer(c, 1, text).code(), Code::kCorrupt);
}

TEST(Pairs, MeetOnceEachAndNobodyMeetsTwoAtATime) {
  for (const int count : {0, 1, 2, 3, 4, 5, 7, 8, 13}) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < rounds_of_pairs(count); ++round) {
      for (int host = 0; host < count; ++host) {
        const int partner = partner_in_round(count, host, round);
        if (partner < 0) continue;
        EXPECT_NE(partner, host);
        EXPECT_EQ(partner_in_round(count, partner, round), host) << count << " hosts";
        if (host > partner) continue;
        EXPECT_TRUE(met.emplace(host, partner).second) << count << " hosts";
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(count * (count - 1) / 2)) << count << " hosts";
  }
}

/// What a time service may do to the wall clock meanwhile.
constexpr double kSlewed = 1e-5;

TEST(Link, IsMeasured) {
  const transport::Secret secret = transport::Secret::random();
  const auto server = LinkServer::start("127.0.0.1", {}, secret);
  ASSERT_TRUE(server.ok()) << server.status().message();
  const LinkMeasurement m = measure_link({(*server)->address(), secret, 0, 1, 2});
  EXPECT_EQ(m.problem, "");
  EXPECT_FALSE(m.is_encrypted);  // inside of a host
  EXPECT_GT(m.mtu, 1000);
  EXPECT_GT(m.round_trip_seconds, 0);
  EXPECT_GT(m.bytes_per_second, 0);
  // it is one clock, read within the round trip
  EXPECT_LE(std::abs(m.clock_ahead_seconds), m.round_trip_seconds / 2 + kSlewed);
}

TEST(Link, ADifferentSecretIsAProblem) {
  const auto server = LinkServer::start("127.0.0.1", {}, transport::Secret::random());
  ASSERT_TRUE(server.ok());
  const LinkMeasurement m =
      measure_link({(*server)->address(), transport::Secret::random(), 0, 1, 2});
  EXPECT_THAT(m.problem, HasSubstr("secret"));
}

}  // namespace
}  // namespace stormo::cli
