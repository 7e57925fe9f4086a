#include <stormo/server/worker/server_liveness.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace stormo::server {
namespace {

using Servers = std::vector<std::int32_t>;

/// a0:1, a1:1, ...
std::vector<transport::HostPort> addresses(int servers) {
  std::vector<transport::HostPort> out;
  for (int s = 0; s < servers; ++s) out.push_back({.host = fmt::format("a{}", s), .port = 1});
  return out;
}

/// What the next beat says.
Servers verdicts(ServerLiveness& board) { return board.beat().lost; }

std::string complaint(std::int32_t about) { return encode(ServerNews{.complaints = {about}}); }

TEST(ServerLiveness, TheChiefDecidesByTheFirstComplaint) {
  ServerLiveness chief(addresses(2), /*worker=*/0);
  EXPECT_EQ(verdicts(chief), Servers{});
  chief.take(1, complaint(0));
  chief.take(0, complaint(1));
  EXPECT_EQ(verdicts(chief), Servers{0});
  EXPECT_EQ(chief.health(0)->status(),
            Status(Code::kPeerLost, "the server at a0:1 is lost: another server cannot reach it"));
  EXPECT_FALSE(chief.health(1)->failed());
}

TEST(ServerLiveness, TheChiefsOwnLossCounts) {
  ServerLiveness chief(addresses(3), /*worker=*/0);
  (void)chief.health(2)->fail(Status(Code::kPeerLost, "its process has ended"));
  EXPECT_EQ(verdicts(chief), Servers{2});
  chief.take(2, complaint(1));
  EXPECT_EQ(verdicts(chief), Servers{2}) << "what a lost server says does not count";
}

TEST(ServerLiveness, AServerThatEndsAfterTheRunIsNotLost) {
  ServerLiveness chief(addresses(2), /*worker=*/0);
  chief.rest();
  (void)chief.health(0)->fail(Status(Code::kPeerLost, "the chief has finished the run"));
  chief.take(1, complaint(0));
  EXPECT_EQ(verdicts(chief), Servers{});
}

TEST(ServerLiveness, OtherWorkersBelieveWhatServersPassOn) {
  ServerLiveness other(addresses(2), /*worker=*/1);
  other.take(1, complaint(0));
  EXPECT_FALSE(other.health(0)->failed()) << "a complaint is no verdict";
  other.take(1, encode(ServerNews{.lost = {-1, 0, 2}}));
  EXPECT_EQ(other.health(0)->status().message(), "the server at a0:1 is lost: the chief says so");
  EXPECT_FALSE(other.health(1)->failed());
  EXPECT_EQ(verdicts(other), Servers{}) << "only the chief's beats have verdicts";
}

ServerNews of_term(std::uint64_t number, std::int32_t worker) {
  return {.chief = {.number = number, .worker = worker}};
}

TEST(ServerLiveness, ANewChiefHearsAllServersBeforeItDecides) {
  ServerLiveness next(addresses(3), /*worker=*/2);
  EXPECT_FALSE(next.is_chief());
  next.take(0, encode(of_term(1, 2)));
  EXPECT_FALSE(next.is_chief()) << "others would not know who says so";
  EXPECT_EQ(next.beat().chief, of_term(1, 2).chief);
  ServerNews complains = of_term(1, 2);
  complains.complaints = {1};
  next.take(0, encode(complains));
  EXPECT_EQ(verdicts(next), Servers{}) << "server 1 may know more";
  ServerNews told = of_term(1, 2);
  told.lost = {0};  // by the chief before
  next.take(1, encode(told));
  EXPECT_EQ(verdicts(next), Servers{0});
  complains.complaints = {2};
  next.take(1, encode(complains));
  EXPECT_EQ(verdicts(next), Servers{0}) << "server 2 may know more";
  next.take(2, encode(of_term(1, 2)));
  next.take(1, encode(complains));
  EXPECT_EQ(verdicts(next), (Servers{0, 2}));
  EXPECT_TRUE(next.is_chief());
}

TEST(ServerLiveness, AChiefThatWasReplacedHasLostAllServers) {
  ServerLiveness chief(addresses(2), /*worker=*/0);
  chief.open();
  chief.take(1, encode(of_term(1, 1)));
  EXPECT_FALSE(chief.is_chief());
  for (const std::size_t server : {0, 1}) {
    EXPECT_EQ(chief.health(server)->status().message().find("worker 1 keeps the run now"), 0u);
  }
}

TEST(ServerLiveness, ANewProcessOfWorkerZeroIsNoChief) {
  ServerLiveness again(addresses(2), /*worker=*/0);
  again.learn(of_term(2, 1).chief);
  again.learn(of_term(1, 0).chief);
  EXPECT_FALSE(again.is_chief());
  EXPECT_FALSE(again.health(0)->failed());
}

TEST(ServerLiveness, OthersLearnThatTheRunIsOver) {
  ServerLiveness other(addresses(2), /*worker=*/1);
  other.take(0, encode(ServerNews{}));
  EXPECT_FALSE(other.is_over());
  other.take(0, encode(ServerNews{.is_over = true}));
  other.take(1, encode(ServerNews{}));
  EXPECT_TRUE(other.is_over());
}

TEST(ServerLiveness, MalformedNewsAreIgnored) {
  ServerLiveness chief(addresses(2), /*worker=*/0);
  chief.take(1, complaint(0).substr(1));
  chief.take(1, complaint(7));
  EXPECT_EQ(verdicts(chief), Servers{});
}

}  // namespace
}  // namespace stormo::server
