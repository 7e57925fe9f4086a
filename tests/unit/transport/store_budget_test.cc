#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <poll.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/reply.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/store/store.h>
#include <stormo/transport/store/store_address.h>
#include <stormo/transport/store/store_message.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

/// What one rank can make the Store hold by asking and not reading. Measured in the heap of this
/// process, which the server shares; a sanitizer's heap measures nothing.
namespace stormo::transport {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20;

Deadline soon() { return Deadline::after(30s); }

std::size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class StoreBudget : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreServer::Options options;
    options.secret = secret_;
    options.on_refused = [this](std::string_view line) {
      if (line.find("does not read its replies") != std::string_view::npos) ++dropped_;
    };
    server_ = std::move(*StoreServer::start(options));
    client_ = std::move(*StoreClient::connect({server_->address(), secret_, 1h}, soon()));
  }

  /// A session that reads when the test does.
  Channel raw_session() {
    const auto endpoint = parse_store_address(server_->address());
    Dialer dialer({*socket_addresses(*endpoint), secret_, Hello{}});
    const RealClock clock;
    while (!dialer.step(clock.now())) {
      pollfd p{dialer.fd(), dialer.poll_events(), 0};
      ::poll(&p, 1, 10);
    }
    return std::move(*dialer.take());
  }

  /// The server has one thread: what was sent before is worked off when it answers.
  void wait_for_server() {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(client_->set("turns", "", soon()).ok());
  }

  static void send_all(const Channel& to, std::string_view bytes) {
    ASSERT_EQ(::send(to.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  /// Reads so much and drops it.
  static ::testing::AssertionResult read_bytes(const Channel& from, std::size_t bytes) {
    std::vector<char> buffer(256 << 10);
    while (bytes > 0) {
      pollfd p{from.fd(), POLLIN, 0};
      const auto failed = [&](std::string_view why) {
        return ::testing::AssertionFailure() << why << ", " << bytes << " bytes missing";
      };
      if (::poll(&p, 1, 30000) <= 0) return failed("nothing for 30 s");
      const ssize_t n = ::recv(from.fd(), buffer.data(), std::min(bytes, buffer.size()), 0);
      if (n == 0) return failed("the server has closed the connection");
      if (n < 0) return failed(std::strerror(errno));
      bytes -= static_cast<std::size_t>(n);
    }
    return ::testing::AssertionSuccess();
  }

  const Secret secret_ = Secret::random();
  std::atomic<int> dropped_{0};
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> client_;
};

const std::size_t kReplyHead = frame(encode(Reply{})).size();

std::string gets(std::size_t number) {
  std::string requests;
  for (std::size_t i = 0; i < number; ++i) {
    requests +=
        frame(encode(StoreRequest{StoreOp::kGet, static_cast<std::uint32_t>(i), 0, "big", {}}));
  }
  return requests;
}

TEST_F(StoreBudget, RequestsOfTenKiBDoNotMakeItGrowByHundredsOfMiB) {
  const std::string big(kMiB, 'x');
  ASSERT_TRUE(client_->set("big", big, soon()).ok());
  const Channel session = raw_session();
  constexpr std::size_t kGets = 400;
  const std::string requests = gets(kGets);
  ASSERT_LT(requests.size(), 12u << 10);
  const std::size_t before = heap_bytes();
  send_all(session, requests);
  wait_for_server();
  EXPECT_LT(heap_bytes(), before + 8 * kMiB);
  EXPECT_TRUE(read_bytes(session, kGets * (kReplyHead + kMiB))) << "every get is answered in time";
  EXPECT_EQ(dropped_, 0);
}

/// Room may come while the server looks after the session: it goes on then, too.
TEST_F(StoreBudget, WhoReadsWhileTheServerSendsIsAnsweredInTime) {
  ASSERT_TRUE(client_->set("big", std::string(kMiB, 'x'), soon()).ok());
  constexpr std::size_t kGets = 100;
  const std::string requests = gets(kGets);
  std::vector<std::jthread> readers;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&, session = raw_session()] {
      send_all(session, requests);
      EXPECT_TRUE(read_bytes(session, kGets * (kReplyHead + kMiB)));
    });
  }
}

TEST_F(StoreBudget, AReaderThatIsAlwaysBehindDoesNotMakeItGrow) {
  const Channel session = raw_session();
  send_all(session, frame(encode(StoreRequest{StoreOp::kWatch, 1, 0, "k", {}})));
  wait_for_server();
  const std::string big(kMiB, 'x');
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(client_->set("k", big, soon()).ok());
  const std::size_t before = heap_bytes();
  for (int i = 0; i < 100; ++i) {  // never less than three values behind
    ASSERT_TRUE(client_->set("k", big, soon()).ok());
    ASSERT_TRUE(read_bytes(session, kReplyHead + kMiB));
  }
  EXPECT_LT(heap_bytes(), before + 8 * kMiB);
  EXPECT_TRUE(read_bytes(session, 4 * (kReplyHead + kMiB)));
  EXPECT_EQ(dropped_, 0);
}

TEST_F(StoreBudget, AWatcherThatNeverReadsIsDropped) {
  const Channel session = raw_session();
  send_all(session, frame(encode(StoreRequest{StoreOp::kWatch, 1, 0, "k", {}})));
  wait_for_server();
  const std::string big(kMiB, 'x');
  const std::size_t before = heap_bytes();
  std::size_t most = before;
  int sets = 0;
  for (; sets < 100 && dropped_ == 0; ++sets) {
    ASSERT_TRUE(client_->set("k", big, soon()).ok());
    most = std::max(most, heap_bytes());
  }
  EXPECT_EQ(dropped_, 1);
  EXPECT_GT(sets, 60);
  EXPECT_LT(most, before + 70 * kMiB);
  wait_for_server();
  EXPECT_LT(heap_bytes(), before + 8 * kMiB) << "and given back";
}

TEST_F(StoreBudget, ManyThatNeverReadAreBoundedTogether) {
  constexpr int kSessions = 6;
  constexpr int kSetsOfEach = 60;  // below the bound of one session
  std::vector<Channel> sessions;
  for (int s = 0; s < kSessions; ++s) {
    sessions.push_back(raw_session());
    const std::string key = "k" + std::to_string(s);
    send_all(sessions.back(), frame(encode(StoreRequest{StoreOp::kWatch, 1, 0, key, {}})));
  }
  wait_for_server();
  const std::string big(kMiB, 'x');
  const std::size_t before = heap_bytes();
  std::size_t most = before;
  for (int s = 0; s < kSessions; ++s) {
    for (int i = 0; i < kSetsOfEach; ++i) {
      ASSERT_TRUE(client_->set("k" + std::to_string(s), big, soon()).ok());
    }
    most = std::max(most, heap_bytes());
  }
  EXPECT_GE(dropped_, 1);
  EXPECT_LT(most, before + (256 + 16) * kMiB);
}

/// Values that many wait for are no reason to drop anybody: they are there once.
TEST_F(StoreBudget, ALargeValueReachesManyAtOnce) {
  constexpr int kSessions = 100;
  std::vector<Channel> sessions;
  for (int s = 0; s < kSessions; ++s) {
    sessions.push_back(raw_session());
    send_all(sessions.back(), frame(encode(StoreRequest{StoreOp::kGet, 1, 0, "k", {}})));
  }
  wait_for_server();
  const std::size_t before = heap_bytes();
  ASSERT_TRUE(client_->set("k", std::string(kMiB, 'x'), soon()).ok());
  EXPECT_LT(heap_bytes(), before + 8 * kMiB);
  for (const Channel& s : sessions) EXPECT_TRUE(read_bytes(s, kReplyHead + kMiB));
  EXPECT_EQ(dropped_, 0);
}

}  // namespace
}  // namespace stormo::transport
