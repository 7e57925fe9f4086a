#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stormo/base/temporary_folder.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/store/store.h>
#include <stormo/transport/store/store_address.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace stormo::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(15s); }

/// Lines said so far; waits for one that contains a text.
class Lines {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  bool wait_for(std::string_view part) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 15s, [&] {
      for (const std::string& l : lines_) {
        if (l.find(part) != std::string::npos) return true;
      }
      return false;
    });
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

/// Every behaviour holds on both kinds of socket.
class Store : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()).starts_with("tcp")) secret_ = Secret::random();
    StoreServer::Options options;
    options.listen = GetParam();
    options.secret = secret_;
    options.on_refused = [this](std::string_view line) { refused_.add(std::string(line)); };
    options.on_set = [this](std::string_view key, std::string_view value) {
      sets_.add(std::string(key) + "=" + std::string(value));
    };
    auto server = StoreServer::start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
  }

  std::unique_ptr<StoreClient> client() {
    auto c = StoreClient::connect({server_->address(), secret_, 20ms}, soon());
    EXPECT_TRUE(c.ok()) << c.status().to_string();
    return std::move(*c);
  }

  Secret secret_;
  Lines refused_;
  Lines sets_;
  std::unique_ptr<StoreServer> server_;
};

TEST_P(Store, SetsAndGets) {
  const auto a = client();
  const auto b = client();
  ASSERT_TRUE(a->set("key", "one", soon()).ok());
  EXPECT_EQ(*b->get("key", soon()), "one");
  ASSERT_TRUE(b->set("key", "", soon()).ok());
  EXPECT_EQ(*a->get("key", soon()), "");
  EXPECT_EQ(server_->get("key"), "");
  EXPECT_EQ(server_->get("other"), std::nullopt);
}

TEST_P(Store, ValuesOfEverySizeArriveWhole) {
  const auto a = client();
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4093}, std::size_t{65537}, kMaxValueBytes}) {
    const std::string value(size, static_cast<char>('a' + size % 26));
    ASSERT_TRUE(a->set("big", value, soon()).ok());
    EXPECT_EQ(*a->get("big", soon()), value);
  }
  const std::string longest_key(kMaxKeyBytes, 'k');
  EXPECT_TRUE(a->set(longest_key, "x", soon()).ok());
  EXPECT_EQ(a->set("big", std::string(kMaxValueBytes + 1, 'x'), soon()).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(a->set(longest_key + "k", "x", soon()).code(), Code::kInvalidArgument);
  EXPECT_EQ(a->set("", "x", soon()).code(), Code::kInvalidArgument);
}

TEST_P(Store, GetWaitsForTheValue) {
  const auto a = client();
  const auto b = client();
  auto waiting = std::async(std::launch::async, [&] { return a->get("late", soon()); });
  ASSERT_TRUE(b->set("late", "here", soon()).ok());
  EXPECT_EQ(*waiting.get(), "here");
}

TEST_P(Store, GetEndsAtItsDeadlineAndTheSessionGoesOn) {
  const auto a = client();
  const auto got = a->get("never", Deadline::after(20ms));
  EXPECT_EQ(got.status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(got.status().message(), HasSubstr("'never'"));
  ASSERT_TRUE(a->set("never", "now", soon()).ok());
  EXPECT_EQ(*a->get("never", soon()), "now");
}

TEST_P(Store, FirstOfManyWins) {
  constexpr int kClients = 5;
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(client());
  std::vector<std::future<std::string>> values;
  for (int i = 0; i < kClients; ++i) {
    values.push_back(std::async(std::launch::async, [&clients, i] {
      return *clients[static_cast<std::size_t>(i)]->set_if_absent("first", std::to_string(i),
                                                                  soon());
    }));
  }
  const std::string winner = values[0].get();
  for (std::size_t i = 1; i < kClients; ++i) EXPECT_EQ(values[i].get(), winner);
  EXPECT_FALSE(server_->set_if_absent("first", "late"));
  EXPECT_TRUE(server_->set_if_absent("second", "early"));
}

TEST_P(Store, WhatIsAppendedIsAddedToTheEnd) {
  const auto a = client();
  EXPECT_EQ(*a->append("list", "", soon()), "");
  EXPECT_FALSE(server_->get("list").has_value()) << "who only looks leaves nothing";
  EXPECT_EQ(*a->append("list", "one ", soon()), "one ");
  EXPECT_EQ(*a->append("list", "two", soon()), "one two");
  EXPECT_EQ(*a->append("list", "", soon()), "one two");
}

TEST_P(Store, AnErasedKeyMayBeSetAnew) {
  const auto a = client();
  ASSERT_TRUE(a->set("k", "old", soon()).ok());
  ASSERT_TRUE(a->erase("k", soon()).ok());
  EXPECT_FALSE(server_->get("k").has_value());
  EXPECT_EQ(*a->set_if_absent("k", "new", soon()), "new");
}

TEST_P(Store, WatchSeesThePresentAndEveryLaterValueInOrder) {
  const auto a = client();
  const auto b = client();
  ASSERT_TRUE(a->set("w", "0", soon()).ok());
  std::promise<void> done;
  std::vector<std::string> seen;
  ASSERT_TRUE(b->watch("w", [&](std::string_view value) {
                 seen.emplace_back(value);
                 if (value == "3") done.set_value();
               }).ok());
  ASSERT_TRUE(b->set("other", "x", soon()).ok());  // the watch has arrived by now
  for (const char* v : {"1", "2", "3"}) ASSERT_TRUE(a->set("w", v, soon()).ok());
  ASSERT_EQ(done.get_future().wait_for(15s), std::future_status::ready);
  EXPECT_THAT(seen, ElementsAre("0", "1", "2", "3"));
}

TEST_P(Store, SetsOfTheHostReachEverybodyAndAreReported) {
  const auto a = client();
  auto waiting = std::async(std::launch::async, [&] { return a->get("plan", soon()); });
  server_->set("plan", "go");
  EXPECT_EQ(*waiting.get(), "go");
  EXPECT_TRUE(sets_.wait_for("plan=go"));
}

TEST_P(Store, ADeathLeavesTheWillWithReasonAndNote) {
  const auto watcher = client();
  {
    std::promise<void> third;
    std::atomic<int> notes = 0;
    const auto mortal = client();
    ASSERT_TRUE(mortal->set_will("failure", "rank 1 on b", 10s, soon()).ok());
    // When the third note is asked for, the beat with the first one has been sent.
    mortal->set_note_source([&] {
      if (++notes == 3) third.set_value();
      return std::string("step 13");
    });
    ASSERT_EQ(third.get_future().wait_for(15s), std::future_status::ready);
  }
  EXPECT_EQ(*watcher->get("failure", soon()),
            "rank 1 on b; connection closed; last reported: step 13");
}

TEST_P(Store, IsDesertedWhenEveryWillIsSpoken) {
  const auto ask = [this] {
    auto said = std::make_shared<std::promise<std::vector<std::string>>>();
    server_->when_deserted([this, said] { said->set_value(sets_.all()); });
    return said->get_future();
  };
  EXPECT_EQ(ask().wait_for(15s), std::future_status::ready) << "nobody was ever there";
  auto mortal = client();
  ASSERT_TRUE(mortal->set_will("failure", "rank 1", 10s, soon()).ok());
  auto deserted = ask();
  ASSERT_TRUE(mortal->set("fence", "x", soon()).ok());  // later turns of the server have passed
  EXPECT_EQ(deserted.wait_for(0s), std::future_status::timeout);
  mortal.reset();
  ASSERT_EQ(deserted.wait_for(15s), std::future_status::ready);
  EXPECT_THAT(deserted.get(), ::testing::Contains(::testing::StartsWith("failure=rank 1")));
}

TEST_P(Store, AGoodbyeDropsTheWill) {
  const auto watcher = client();
  {
    const auto leaver = client();
    ASSERT_TRUE(leaver->set_will("failure", "must not appear", 10s, soon()).ok());
    ASSERT_TRUE(leaver->goodbye(soon()).ok());
  }
  {
    const auto mortal = client();
    ASSERT_TRUE(mortal->set_will("failure", "second", 10s, soon()).ok());
  }
  EXPECT_THAT(*watcher->get("failure", soon()), ::testing::StartsWith("second"));
}

TEST_P(Store, AfterAGoodbyeNothingIsLeftOfTheSession) {
  const auto leaver = client();
  bool lost = false;
  leaver->on_lost([&](const Status&) { lost = true; });
  ASSERT_TRUE(leaver->goodbye(soon()).ok());
  std::promise<void> deserted;
  server_->when_deserted([&] { deserted.set_value(); });
  EXPECT_EQ(deserted.get_future().wait_for(15s), std::future_status::ready);
  EXPECT_EQ(leaver->set("x", "y", soon()).code(), Code::kCancelled);
  EXPECT_EQ(leaver->watch("x", {}).code(), Code::kCancelled);
  EXPECT_FALSE(lost);
}

TEST_P(Store, AGoodbyeThatComesTooLateEndsTheSessionInOrder) {
  const auto watcher = client();
  const auto leaver = client();
  ASSERT_TRUE(leaver->set_will("failure", "must not appear", 10s, soon()).ok());
  static_cast<void>(leaver->goodbye(Deadline::after(0s)));
  std::promise<void> deserted;
  server_->when_deserted([&] { deserted.set_value(); });
  ASSERT_TRUE(watcher->goodbye(soon()).ok());
  ASSERT_EQ(deserted.get_future().wait_for(15s), std::future_status::ready);
  EXPECT_EQ(server_->get("failure"), std::nullopt);
}

TEST_P(Store, TheFirstWillWins) {
  auto first = client();
  auto second = client();
  const auto watcher = client();
  ASSERT_TRUE(first->set_will("failure", "first", 10s, soon()).ok());
  ASSERT_TRUE(second->set_will("failure", "second", 10s, soon()).ok());
  first.reset();
  ASSERT_TRUE(watcher->get("failure", soon()).ok());
  second.reset();
  const auto witness = client();
  ASSERT_TRUE(witness->set("fence", "x", soon()).ok());
  EXPECT_THAT(*watcher->get("failure", soon()), ::testing::StartsWith("first"));
}

TEST_P(Store, ASilentSessionIsDead) {
  // No beat for an hour, though it promised one within 100 ms.
  auto mute = StoreClient::connect({server_->address(), secret_, 1h}, soon());
  ASSERT_TRUE(mute.ok());
  ASSERT_TRUE((*mute)->set_will("failure", "rank 3", 100ms, soon()).ok());
  const auto watcher = client();
  if (std::string(GetParam()).starts_with("tcp")) {
    EXPECT_THAT(*watcher->get("failure", soon()), HasSubstr("rank 3; silent for "));
  } else {  // its process is seen to run: this one
    EXPECT_EQ(watcher->get("failure", Deadline::after(900ms)).status().code(),
              Code::kDeadlineExceeded);
  }
  // A session that beats is not judged.
  const auto steady = client();
  ASSERT_TRUE(steady->set_will("failure2", "rank 4", 400ms, soon()).ok());
  EXPECT_EQ(watcher->get("failure2", Deadline::after(900ms)).status().code(),
            Code::kDeadlineExceeded);
}

TEST_P(Store, TheEndOfTheServerEndsEveryCall) {
  const auto a = client();
  std::promise<Status> lost;
  a->on_lost([&](Status why) { lost.set_value(std::move(why)); });
  auto waiting = std::async(std::launch::async, [&] { return a->get("never", Deadline::never()); });
  ASSERT_TRUE(a->set("fence", "x", soon()).ok());
  server_.reset();
  EXPECT_EQ(waiting.get().status().code(), Code::kPeerLost);
  auto reported = lost.get_future();
  ASSERT_EQ(reported.wait_for(15s), std::future_status::ready);
  EXPECT_EQ(reported.get().code(), Code::kPeerLost);
  EXPECT_EQ(a->set("k", "v", soon()).code(), Code::kPeerLost);
  EXPECT_EQ(a->watch("k", [](std::string_view) {}).code(), Code::kPeerLost);
  std::promise<void> late;
  a->on_lost([&](Status) { late.set_value(); });
  EXPECT_EQ(late.get_future().wait_for(15s), std::future_status::ready);
}

TEST_P(Store, KnowsItsLocalAddress) {
  const std::string host = client()->local_address();
  const std::map<std::string, std::string> expected = {
      {"unix:", ""}, {"tcp:127.0.0.1", "127.0.0.1"}, {"tcp:[::1]", "::1"}};
  EXPECT_EQ(host, expected.at(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Sockets, Store, ::testing::Values("unix:", "tcp:127.0.0.1", "tcp:[::1]"),
                         [](const auto& where) {
                           const std::string name = where.param;
                           if (name == "unix:") return std::string("Unix");
                           return std::string(name == "tcp:[::1]" ? "Tcp6" : "Tcp4");
                         });

TEST(StoreConnect, WaitsForALateServer) {
  const std::string name = "stormo-test-" + Secret::random().to_hex().substr(0, 16);
  auto late = std::async(std::launch::async, [&] {
    return StoreClient::connect({{"unix:" + name}, {}, 250ms}, soon());
  });
  StoreServer::Options options;
  options.listen = "unix:" + name;
  const auto server = StoreServer::start(options);
  ASSERT_TRUE(server.ok());
  EXPECT_TRUE(late.get().ok());
}

TEST(StoreConnect, NamesTheAddressThatDoesNotAnswer) {
  const auto c = StoreClient::connect({{"unix:stormo-nobody"}, {}, 250ms}, Deadline::after(30ms));
  EXPECT_EQ(c.status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(c.status().message(), HasSubstr("unix:stormo-nobody"));
  EXPECT_THAT(c.status().message(), HasSubstr("refused"));
}

TEST(StoreConnect, AWrongSecretIsNamedOnBothSides) {
  Lines refused;
  StoreServer::Options options;
  options.listen = "tcp:127.0.0.1";
  options.secret = Secret::random();
  options.on_refused = [&](std::string_view line) { refused.add(std::string(line)); };
  const auto server = StoreServer::start(options);
  ASSERT_TRUE(server.ok());
  const auto c =
      StoreClient::connect({(*server)->address(), Secret::random(), 250ms}, Deadline::after(200ms));
  EXPECT_EQ(c.status().code(), Code::kDeadlineExceeded) << "the right one may come yet";
  EXPECT_THAT(c.status().message(), HasSubstr("wrong secret"));
  ASSERT_TRUE(refused.wait_for("wrong secret"));
  EXPECT_THAT(
      refused.all(),
      ::testing::Each(::testing::MatchesRegex("refused 127\\.0\\.0\\.1:[0-9]+: wrong secret")));
}

TEST(StoreConnect, TcpNeedsASecret) {
  StoreServer::Options options;
  options.listen = "tcp:127.0.0.1";
  EXPECT_EQ(StoreServer::start(options).status().code(), Code::kInvalidArgument);
  const auto c = StoreClient::connect({{"tcp:127.0.0.1:1"}, {}, 250ms}, soon());
  EXPECT_EQ(c.status().code(), Code::kInvalidArgument);
}

/// An attacker on the path, or a wrong process at the address, says no; the right Store comes
/// later.
TEST(StoreConnect, ARefusalByAStrangerDoesNotEndAJoin) {
  Descriptor stranger = std::move(*listen_tcp({"127.0.0.1", 0}, {}));
  const std::string address = local_address_of(stranger.get())->to_string();
  const Secret secret = Secret::random();
  auto client = std::async(std::launch::async, [&] {
    return StoreClient::connect({{"tcp:" + address}, secret, 250ms}, soon());
  });
  pollfd waiting{stranger.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 15000), 1);
  const Descriptor caller(::accept4(stranger.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::array<std::byte, 64> hello;
  ASSERT_EQ(::recv(caller.get(), hello.data(), hello.size(), MSG_WAITALL), 64);
  Handshake liar = Handshake::as_server(Secret::random(), Purpose::kData, random_nonce());
  liar.receive(hello);
  ASSERT_EQ(liar.refusal(), Refusal::kPurpose);
  ASSERT_EQ(::send(caller.get(), liar.output().data(), liar.output().size(), 0), 80);
  std::array<std::byte, 64> answer;
  ASSERT_EQ(::recv(caller.get(), answer.data(), answer.size(), 0), 0) << "refused, and believed so";
  EXPECT_EQ(client.wait_for(0s), std::future_status::timeout) << "but the join goes on";
  stranger.reset();

  StoreServer::Options options;
  options.listen = "tcp:" + address;
  options.secret = secret;
  const auto server = StoreServer::start(options);
  ASSERT_TRUE(server.ok()) << server.status().to_string();
  const auto connected = client.get();
  EXPECT_TRUE(connected.ok()) << connected.status().to_string();
}

TEST(StoreConnect, ASocketFileIsRemovedInTheEnd) {
  const auto folder = TemporaryFolder::create("store-test").take_or_throw();
  StoreServer::Options options;
  options.listen = "unix:" + (folder.path() / "socket").string();
  options.secret = Secret::random();
  {
    const auto server = StoreServer::start(options);
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    EXPECT_EQ((*server)->address().text, options.listen);
    EXPECT_TRUE(StoreClient::connect({(*server)->address(), options.secret, 250ms}, soon()).ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StoreServerStart, TakesTheFirstFreePortAndNamesAnExhaustedRange) {
  StoreServer::Options options;
  options.listen = "tcp:127.0.0.1";
  options.secret = Secret::random();
  const auto first = StoreServer::start(options);
  ASSERT_TRUE(first.ok());
  const auto port = parse_store_address((*first)->address())->tcp.port;
  options.ports = {port, port};
  const auto second = StoreServer::start(options);
  EXPECT_EQ(second.status().code(), Code::kExhausted);
  const std::string range = std::to_string(port) + "-" + std::to_string(port);
  EXPECT_THAT(second.status().message(), HasSubstr("127.0.0.1 in " + range));
  EXPECT_THAT(second.status().message(), HasSubstr("1 attempt"));
}

}  // namespace
}  // namespace stormo::transport
