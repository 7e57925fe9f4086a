#include <stormo/server/server_board.h>

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
Servers verdicts(ServerBoard& board) { return board.beat().lost; }

std::string complaint(std::int32_t about) { return encode(ServerNews{.complaints = {about}}); }

TEST(ServerBoard, TheChiefDecidesByTheFirstComplaint) {
  ServerBoard chief(addresses(2), /*is_chief=*/true);
  EXPECT_EQ(verdicts(chief), Servers{});
  chief.take(1, complaint(0));
  chief.take(0, complaint(1));
  EXPECT_EQ(verdicts(chief), Servers{0});
  EXPECT_EQ(chief.health(0)->status(),
            Status(Code::kPeerLost, "the server at a0:1 is lost: another server cannot reach it"));
  EXPECT_FALSE(chief.health(1)->failed());
}

TEST(ServerBoard, TheChiefsOwnLossCounts) {
  ServerBoard chief(addresses(3), /*is_chief=*/true);
  (void)chief.health(2)->fail(Status(Code::kPeerLost, "its process has ended"));
  EXPECT_EQ(verdicts(chief), Servers{2});
  chief.take(2, complaint(1));
  EXPECT_EQ(verdicts(chief), Servers{2}) << "what a lost server says does not count";
}

TEST(ServerBoard, AServerThatEndsAfterTheRunIsNotLost) {
  ServerBoard chief(addresses(2), /*is_chief=*/true);
  chief.rest();
  (void)chief.health(0)->fail(Status(Code::kPeerLost, "worker 0 has finished the run"));
  chief.take(1, complaint(0));
  EXPECT_EQ(verdicts(chief), Servers{});
}

TEST(ServerBoard, OtherWorkersBelieveWhatServersPassOn) {
  ServerBoard other(addresses(2), /*is_chief=*/false);
  other.take(1, complaint(0));
  EXPECT_FALSE(other.health(0)->failed()) << "a complaint is no verdict";
  other.take(1, encode(ServerNews{.lost = {-1, 0, 2}}));
  EXPECT_EQ(other.health(0)->status().message(), "the server at a0:1 is lost: the chief says so");
  EXPECT_FALSE(other.health(1)->failed());
  EXPECT_EQ(verdicts(other), Servers{}) << "only the chief's beats have verdicts";
}

TEST(ServerBoard, MalformedNewsAreIgnored) {
  ServerBoard chief(addresses(2), /*is_chief=*/true);
  chief.take(1, complaint(0).substr(1));
  chief.take(1, complaint(7));
  EXPECT_EQ(verdicts(chief), Servers{});
}

}  // namespace
}  // namespace stormo::server
