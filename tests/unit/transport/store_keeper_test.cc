#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stormo/transport/store/store_keeper.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace stormo::transport {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(15s); }

class Job {
 public:
  Job() {
    auto started = StoreServer::start({});
    EXPECT_TRUE(started.ok()) << started.status().to_string();
    server = std::move(*started);
    address = server->address();
    other = client();
  }
  std::unique_ptr<StoreClient> client(Deadline by = soon()) const {
    auto made = StoreClient::connect({address, {}}, by);
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::unique_ptr<StoreServer> server;
  StoreAddress address;
  std::unique_ptr<StoreClient> other;  ///< of a rank that has not left
};

class Keeper : public ::testing::Test {
 protected:
  StoreKeeper::Options options(Duration at_most, Duration say_after) {
    return {at_most, say_after, [this](std::string_view line) {
              lines.emplace_back(line);
              said.set_value();
            }};
  }
  std::vector<std::string> lines;
  std::promise<void> said;
};

TEST_F(Keeper, StaysUntilTheOthersHaveLeft) {
  Job job;
  std::promise<void> going;
  std::thread end([&] {
    StoreKeeper keeper(options(15s, 1ms));
    keeper.keep(std::move(job.server));
    EXPECT_TRUE(job.other->set("x", "kept", soon()).ok());
    going.set_value();
  });
  going.get_future().wait();
  said.get_future().wait();
  EXPECT_EQ(*job.other->get("x", soon()), "kept") << "the end waits";
  EXPECT_TRUE(job.other->goodbye(soon()).ok());
  end.join();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], ContainsRegex("stays at most 1[0-4] s for the ranks that have not"));
  EXPECT_THAT(lines[0], HasSubstr(job.address.text));
  EXPECT_EQ(job.client(Deadline::after(1ms)), nullptr) << "the server has ended";
}

/// One thread waits for a job of its own, and another leaves one.
TEST_F(Keeper, KeepsMoreWhileSomebodyWaits) {
  Job job, more;
  StoreKeeper keeper(options(15s, 10s));
  keeper.keep(std::move(job.server));
  std::promise<void> waiting;
  std::thread waits([&] {
    waiting.set_value();
    EXPECT_TRUE(keeper.wait(soon()));
  });
  waiting.get_future().wait();
  ::poll(nullptr, 0, 20);  // surely it waits now
  keeper.keep(std::move(more.server));
  EXPECT_TRUE(more.other->set("x", "kept", soon()).ok());
  EXPECT_TRUE(job.other->goodbye(soon()).ok());
  waits.join();
  EXPECT_TRUE(more.other->goodbye(soon()).ok());
}

TEST_F(Keeper, WhoWaitsAtTheEndLooksMeanwhile) {
  Job job;
  StoreKeeper keeper(options(15s, 10s));
  keeper.keep(std::move(job.server));
  EXPECT_THROW(keeper.wait_at_end([] { throw std::runtime_error("a signal"); }),
               std::runtime_error);
  EXPECT_TRUE(job.other->goodbye(soon()).ok());
}

TEST_F(Keeper, DoesNotStayForEver) {
  Job job;
  {
    StoreKeeper keeper(options(50ms, 1ms));
    keeper.keep(std::move(job.server));
  }
  EXPECT_EQ(job.other->set("x", "y", soon()).code(), Code::kPeerLost);
}

TEST_F(Keeper, WhoHasLeftIsNotWaitedFor) {
  Job job;
  {
    StoreKeeper keeper(options(15s, 10s));
    EXPECT_TRUE(job.other->goodbye(soon()).ok());  // its client lives on
    keeper.keep(std::move(job.server));
  }
  EXPECT_THAT(lines, IsEmpty());
}

TEST_F(Keeper, AServerIsClosedAsSoonAsItHasNoClients) {
  Job first, second;
  StoreKeeper keeper(options(15s, 10s));
  keeper.keep(std::move(first.server));
  keeper.keep(std::move(second.server));
  EXPECT_TRUE(first.other->goodbye(soon()).ok());
  for (Deadline by = soon(); first.client(Deadline::after(1ms)) != nullptr;) {
    ASSERT_FALSE(by.expired());
    ::poll(nullptr, 0, 1);
  }
  EXPECT_TRUE(second.other->set("x", "y", soon()).ok());
  EXPECT_TRUE(second.other->goodbye(soon()).ok());
}

TEST_F(Keeper, AForkedChildWaitsForNobody) {
  Job job;
  StoreKeeper keeper(options(15s, 10s));
  keeper.keep(std::move(job.server));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    keeper.~StoreKeeper();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 7);
  EXPECT_TRUE(job.other->goodbye(soon()).ok());
}

}  // namespace
}  // namespace stormo::transport
