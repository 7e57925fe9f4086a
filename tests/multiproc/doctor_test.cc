// `stormo doctor -H`: what the hosts of a job say, and what is between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;

Outcome doctor(const std::vector<std::string>& words,
               const std::vector<std::string>& variables = {}) {
  std::vector<std::string> all{built("stormo"), "doctor"};
  all.insert(all.end(), words.begin(), words.end());
  return run_to_end(all, variables);
}

json report(const Outcome& o) {
  const json out = json::parse(o.out, nullptr, false);
  EXPECT_FALSE(out.is_discarded()) << o.out << o.err;
  return out;
}

std::vector<std::string> whats(const json& out) {
  std::vector<std::string> texts;
  for (const json& f : out["findings"]) texts.push_back(f["what"]);
  return texts;
}

TEST(DoctorOfHosts, SaysWhatEachHostIsAndMeasuresBothWays) {
  const Outcome o = doctor({"-H", "localhost:1,127.0.0.1:4000", "--json"});
  EXPECT_EQ(o.status, 0) << o.out << o.err;
  const json out = report(o);
  ASSERT_EQ(out["hosts"].size(), 2u);
  for (const json& host : out["hosts"]) {
    EXPECT_EQ(host["problem"], "");
    for (const char* key : {"version", "protocol", "kernel", "memory_bytes", "dev_shm_bytes"})
      EXPECT_TRUE(host["report"].contains(key)) << key;
    EXPECT_LE(std::abs(host["clock_ahead_s"].get<double>()),
              host["clock_error_s"].get<double>() + 1e-5);  // the clock may be slewed meanwhile
  }
  ASSERT_EQ(out["links"].size(), 2u);
  for (const json& link : out["links"]) {
    EXPECT_EQ(link["problem"], "");
    EXPECT_GT(link["round_trip_s"], 0);
    EXPECT_GT(link["bytes_per_s"], 0);
    EXPECT_EQ(link["encrypted"], false);
  }
  EXPECT_THAT(whats(out), Contains(HasSubstr("4000 ranks on ")));
  EXPECT_EQ(out["elastic"]["end_job"], json({"localhost"}));

  const Outcome text = doctor({"-H", "localhost,127.0.0.1"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("localhost to 127.0.0.1"));
  EXPECT_THAT(text.out, HasSubstr("127.0.0.1 may be lost; the loss of localhost ends the job"));
}

TEST(DoctorOfHosts, AHostThatCannotBeReachedIsARow) {
  const Outcome o = doctor(
      {"-H", "localhost,nowhere", "--interface", "lo", "--remote-shell", "false {host}", "--json"});
  EXPECT_EQ(o.status, 1) << o.err;
  const json out = report(o);
  EXPECT_EQ(out["hosts"][0]["problem"], "");
  EXPECT_THAT(out["hosts"][1]["problem"], HasSubstr("the remote shell ended with exit status 1"));
  EXPECT_TRUE(out["hosts"][1]["report"].is_null());
  EXPECT_TRUE(out["links"].empty());
  EXPECT_THAT(whats(out), Contains(HasSubstr("does not answer: the remote shell ended")));
}

TEST(DoctorOfHosts, WrongUsageIsToldBeforeAnythingStarts) {
  const Outcome o = doctor({"-H", "a:0,b", "--ports", "x"});
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("slots must be a whole number"));
  EXPECT_EQ(doctor({"-H", "localhost"}, {"STORMO_TLS=maybe"}).status, 2);
}

TEST(DoctorOfHosts, LinksBetweenHostsAreEncryptedAndDifferencesAreFound) {
  const MadeHosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << "root: " << hosts.problem();
  const std::string first = hosts.name() + "-1", second = hosts.name() + "-2";
  const std::vector<std::string> words = {"-H",
                                          first + "," + second,
                                          "--interface",
                                          hosts.name() + "br,eth0",
                                          "--remote-shell",
                                          "ip netns exec {host}",
                                          "--json"};
  ASSERT_EQ(
      run_to_end({"/usr/bin/env", "ip", "-n", second, "link", "set", "eth0", "mtu", "1400"}).status,
      0);
  Outcome o = doctor(words);
  EXPECT_EQ(o.status, 0) << o.out << o.err;
  json out = report(o);
  ASSERT_EQ(out["links"].size(), 2u);
  for (const json& link : out["links"]) {
    EXPECT_EQ(link["encrypted"], true);
    EXPECT_EQ(link["mtu"], link["from"] == second ? 1400 : 1500);
  }
  EXPECT_THAT(whats(out), Contains(HasSubstr("packets hold 1400 bytes on some links")));
  EXPECT_THAT(out["elastic"]["text"], HasSubstr("any one host may be lost"));

  // the agent takes over what the job has chosen, and so do its ranks
  o = doctor(words, {"STORMO_TLS=off"});
  EXPECT_EQ(o.status, 0) << o.out << o.err;
  out = report(o);
  for (const json& link : out["links"]) EXPECT_EQ(link["encrypted"], false);
}

TEST(DoctorOfHosts, HostsThatDoNotReachEachOtherAreFound) {
  const MadeHosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << "root: " << hosts.problem();
  const std::string first = hosts.name() + "-1", second = hosts.name() + "-2";
  const Outcome address =
      run_to_end({"/usr/bin/env", "ip", "-n", second, "-4", "-o", "addr", "show", "eth0"});
  const std::size_t begin = address.out.find("inet ") + 5;
  const std::string of_second = address.out.substr(begin, address.out.find('/') - begin);
  ASSERT_EQ(
      run_to_end({"/usr/bin/env", "ip", "-n", first, "route", "add", "unreachable", of_second})
          .status,
      0);
  const Outcome o = doctor({"-H", first + "," + second, "--interface", hosts.name() + "br,eth0",
                            "--remote-shell", "ip netns exec {host}", "--json"});
  EXPECT_EQ(o.status, 1) << o.out << o.err;
  const json out = report(o);
  ASSERT_EQ(out["links"].size(), 2u);
  for (const json& link : out["links"]) EXPECT_NE(link["problem"], "");
  EXPECT_THAT(whats(out), Contains(HasSubstr(first + " to " + second + ": ")));
}

}  // namespace
}  // namespace stormo::testing
