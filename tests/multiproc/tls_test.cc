// What crosses the network between two hosts, byte for byte: with TLS nothing of what ranks send,
// and nothing of what they tell each other in the Store. Hosts with different settings do not meet.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <stormo/base/descriptor.h>
#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

/// Records all frames that an interface receives and sends.
class Capture {
 public:
  explicit Capture(const std::string& interface)
      : socket_(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL))) {
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(ETH_P_ALL);
    at.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
    const int room = 64 << 20;
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    works_ = ::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0;
    thread_ = std::thread([this] { record(); });
  }
  ~Capture() { (void)take(); }

  bool works() const { return works_; }
  /// All that was seen.
  std::string take() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  void record() {
    std::array<char, 64 << 10> frame;
    for (;;) {
      pollfd p{socket_.get(), POLLIN, 0};
      const bool has_frame = ::poll(&p, 1, 10) > 0;
      if (!has_frame && is_over_) return;
      const ssize_t n =
          has_frame ? ::recv(socket_.get(), frame.data(), frame.size(), MSG_DONTWAIT) : 0;
      if (n > 0) seen_.append(frame.data(), static_cast<std::size_t>(n));
    }
  }

  const Descriptor socket_;
  bool works_ = false;
  std::atomic<bool> is_over_{false};
  std::string seen_;
  std::thread thread_;
};

class TlsBetweenHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << "root: " << hosts_.problem();
  }
  /// `before`: words that start a rank.
  Outcome run(const std::vector<std::string>& variables,
              const std::vector<std::string>& before = {}) const {
    std::vector<std::string> words = {built("stormo"),
                                      "run",
                                      "-H",
                                      name_ + "-1:1," + name_ + "-2:1",
                                      "--remote-shell",
                                      "ip netns exec {host}",
                                      "--interface",
                                      name_ + "br,eth0",
                                      "--"};
    words.insert(words.end(), before.begin(), before.end());
    words.insert(words.end(), {built("line_worker"), "canary"});
    return run_to_end(words, variables);
  }
  const MadeHosts hosts_{2};
  const std::string& name_ = hosts_.name();
};

TEST_F(TlsBetweenHosts, NothingIsReadableUnlessItIsSwitchedOff) {
  for (const bool is_encrypted : {false, true}) {
    Capture capture(name_ + "v2");
    ASSERT_TRUE(capture.works());
    const Outcome o =
        run(is_encrypted ? std::vector<std::string>() : std::vector<std::string>{"STORMO_TLS=off"});
    ASSERT_EQ(o.status, 0) << o.err;
    const std::string seen = capture.take();
    ASSERT_GT(seen.size(), 100'000u);
    // of a collective, of a message, and of the Store, where ranks tell the names of their hosts
    for (const std::string& word :
         {std::string("CanaryInACollective!"), std::string("CanaryInAMessage!!!!"), name_ + "-2"}) {
      if (is_encrypted) {
        EXPECT_EQ(seen.find(word), std::string::npos) << word;
      } else {
        EXPECT_NE(seen.find(word), std::string::npos) << word;
      }
    }
  }
}

/// As where the variable is set in the profile of one host.
TEST_F(TlsBetweenHosts, DifferentSettingsAreNamedWithTheRemedy) {
  const Outcome o =
      run({}, {"sh", "-c", "[ $STORMO_RANK = 0 ] || export STORMO_TLS=off; exec $0 $1"});
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("the peer has STORMO_TLS=psk, this process STORMO_TLS=off; set the "
                               "same for all processes of the job"));
}

TEST_F(TlsBetweenHosts, AWrongSettingIsRefused) {
  const Outcome o = run({"STORMO_TLS=yes"});
  EXPECT_NE(o.status, 0);
  EXPECT_THAT(o.err, HasSubstr("STORMO_TLS is 'yes': use off, psk or always"));
}

}  // namespace
}  // namespace stormo::testing
