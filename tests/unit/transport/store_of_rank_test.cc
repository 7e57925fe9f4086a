// A Store whose server is in a rank's process: what its clients take for its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/store/store_of_rank.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <string>
#include <utility>

namespace stormo::transport {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr auto kBeat = 20ms;
const std::string kServer = "rank 3, which serves the Store at ";
const std::string kNoAnswer =
    ": it does not answer; its process is stopped, or its host cannot be reached";

Deadline soon() { return Deadline::after(15s); }

StoreServer::Options options_at(const std::string& where, const Secret& secret) {
  StoreServer::Options options;
  options.listen = where;
  options.secret = secret;
  return options;
}

/// A process that serves a Store. To be made while this one has no other thread.
class ServingProcess {
 public:
  ServingProcess(const std::string& where, const Secret& secret) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw Error(errno_error("pipe"));
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto server = StoreServer::start(options_at(where, secret)).take_or_throw();
      const std::string said = server->address().text;
      if (::write(ends[1], said.data(), said.size()) < 0) ::_exit(1);
      for (;;) ::pause();
    }
    std::array<char, 256> buffer{};
    const ssize_t n = ::read(ends[0], buffer.data(), buffer.size());
    address.text.assign(buffer.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
    for (const int end : ends) ::close(end);
  }
  ~ServingProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    siginfo_t info{};
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT), 0);
  }
  void signal(int signal) const { ::kill(pid_, signal); }

  StoreAddress address;

 private:
  pid_t pid_ = 0;
};

class StoreOfRank : public ::testing::TestWithParam<const char*> {
 protected:
  bool is_unix() const { return std::string(GetParam()) == "unix:"; }
  /// One whose server has answered a beat.
  std::unique_ptr<StoreClient> client(const StoreAddress& at, Duration silence) const {
    auto c =
        connect_to_rank({3, silence}, {.address = at, .secret = secret_, .beat = kBeat}, soon())
            .take_or_throw();
    // the first beat goes out with the first call or before it
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(c->set("k", "v", soon()).ok());
    return c;
  }
  /// Filled when the client says so.
  static std::future<Status> loss_of(StoreClient& client) {
    auto lost = std::make_shared<std::promise<Status>>();
    client.on_lost([lost](Status why) { lost->set_value(std::move(why)); });
    return lost->get_future();
  }
  const Secret secret_ = Secret::random();
};

TEST_P(StoreOfRank, OneThatHasEndedBeforeIsNamed) {
  const StoreAddress address = ServingProcess(GetParam(), secret_).address;
  const Status why =
      connect_to_rank({3, 300ms}, {.address = address, .secret = secret_}, Deadline::after(100ms))
          .status();
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(why.message(), HasSubstr("cannot reach " + kServer + address.text + ": "));
}

TEST_P(StoreOfRank, AStoppedServerIsLost) {
  const ServingProcess server(GetParam(), secret_);
  const auto c = client(server.address, 300ms);
  auto lost = loss_of(*c);
  auto waiting = std::async(std::launch::async, [&] { return c->get("never", soon()); });
  const auto began = std::chrono::steady_clock::now();
  server.stop();
  const Status why = waiting.get().status();
  EXPECT_GE(std::chrono::steady_clock::now() - began, 300ms - 2 * kBeat);
  EXPECT_EQ(why.code(), Code::kPeerLost);
  EXPECT_EQ(why.message(), "lost " + kServer + server.address.text + kNoAnswer);
  ASSERT_EQ(lost.wait_for(0s), std::future_status::ready) << "told before calls end";
  EXPECT_EQ(lost.get(), why);
  EXPECT_EQ(c->set("k", "v", soon()), why);
}

// Another rank has judged it first, and ended it.
TEST_P(StoreOfRank, AStoppedServerThatIsKilledHasNotAnswered) {
  const ServingProcess server(GetParam(), secret_);
  const auto first = client(server.address, 300ms);
  const auto second = client(server.address, 500ms);
  server.stop();
  const Status why = first->get("never", soon()).status();
  server.signal(SIGKILL);
  EXPECT_EQ(second->get("never", soon()).status(), why);
  EXPECT_EQ(why.message(), "lost " + kServer + server.address.text + kNoAnswer);
}

TEST_P(StoreOfRank, AServerThatIsLateIsNotLost) {
  const ServingProcess server(GetParam(), secret_);
  const auto late = client(server.address, 10s);
  const auto unlimited = client(server.address, 0s);
  const auto of_a_launcher =
      StoreClient::connect({.address = server.address, .secret = secret_, .beat = kBeat}, soon())
          .take_or_throw();
  EXPECT_TRUE(of_a_launcher->set("k", "v", soon()).ok());
  server.stop();
  for (StoreClient* c : {late.get(), unlimited.get(), of_a_launcher.get()}) {
    const Status waited = c->set("k", "w", Deadline::after(500ms));
    EXPECT_EQ(waited.code(), Code::kDeadlineExceeded) << waited.to_string();
  }
  EXPECT_THAT(late->set("k", "w", Deadline::after(1ms)).message(),
              HasSubstr(kServer + server.address.text + " does not answer"));
  server.signal(SIGCONT);
  for (StoreClient* c : {late.get(), unlimited.get(), of_a_launcher.get()}) {
    EXPECT_EQ(c->get("k", soon()).status(), Status());
  }
}

TEST_P(StoreOfRank, AKilledServerHasOneNameForAll) {
  const ServingProcess server(GetParam(), secret_);
  const auto a = client(server.address, 5s);
  const auto b = client(server.address, 0s);
  server.stop();  // what a sends is not read: its connection ends in another way
  EXPECT_FALSE(a->set("k", "w", Deadline::after(kBeat)).ok());
  server.signal(SIGKILL);
  const std::string says =
      "peer lost: lost " + kServer + server.address.text + ": it closed the connection";
  for (StoreClient* c : {a.get(), b.get()}) {
    EXPECT_EQ(c->get("never", soon()).status().to_string(), says);
  }
}

// On this host it is seen that the process of the server runs; of another host it is not known.
TEST_P(StoreOfRank, AServerWhoseProcessRunsIsOnlyLate) {
  std::promise<void> go_on;
  std::atomic<bool> waits = false;
  StoreServer::Options options = options_at(GetParam(), secret_);
  options.on_set = [&, until = go_on.get_future().share()](std::string_view key, std::string_view) {
    if (key != "block") return;
    waits = true;
    until.wait();
  };
  const auto server = StoreServer::start(std::move(options)).take_or_throw();
  const auto c = client(server->address(), 100ms);
  const auto blocks = client(server->address(), 0s);
  while (!waits) static_cast<void>(blocks->set("block", "", Deadline::after(1ms)));
  const auto got = c->get("k", is_unix() ? Deadline::after(1s) : soon());
  EXPECT_EQ(got.status().code(), is_unix() ? Code::kDeadlineExceeded : Code::kPeerLost);
  go_on.set_value();
  EXPECT_EQ(c->get("k", soon()).ok(), is_unix());
}

INSTANTIATE_TEST_SUITE_P(Sockets, StoreOfRank, ::testing::Values("unix:", "tcp:127.0.0.1"),
                         [](const auto& where) {
                           return std::string(where.param == std::string("unix:") ? "Unix" : "Tcp");
                         });

}  // namespace
}  // namespace stormo::transport
