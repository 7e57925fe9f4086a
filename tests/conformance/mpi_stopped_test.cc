// A rank is stopped in the middle of a message: the deadline of the other one still ends its call.
// This needs an MPI whose sender has to do something: where receivers read the sender's memory
// themselves, its stop changes nothing.
#include <signal.h>
#include <stormo/mpi/join.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr std::size_t kShort = (16 << 10) / sizeof(float);
constexpr std::size_t kLong = (256 << 20) / sizeof(float);
constexpr std::size_t kBegun = (1 << 20) / sizeof(float);

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

bool is_stopped(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/stat");
  const std::string stat{std::istreambuf_iterator<char>(in), {}};
  return stat.find(") T ") != std::string::npos;
}

/// While MPI writes it.
float at(const std::vector<float>& data, std::size_t i) {
  return *const_cast<const volatile float*>(&data[i]);
}

/// Rank 0 and rank 1, which is stopped.
class MpiStopped : public testing::Test {
 protected:
  void SetUp() override {
    const char* const copies = std::getenv("OMPI_MCA_btl_vader_single_copy_mechanism");
    if (copies == nullptr || std::string_view(copies) != "none") {
      GTEST_SKIP() << "set-up: run it by ctest, which tells Open MPI that senders move the bytes";
    }
    auto joined = mpi::join_mpi();
    ASSERT_TRUE(joined.ok()) << joined.status().to_string();
    c_ = std::move(*joined);
    if (c_->size() == 1) GTEST_SKIP() << "set-up: it takes two ranks (mpiexec -n 2)";
    std::int64_t process = ::getpid();
    if (c_->rank() == 1) EXPECT_OK(c_->send(std::span(&process, 1), 0, 1, soon()));
    if (c_->rank() == 0) EXPECT_OK(c_->recv(std::span(&process, 1), 1, 1, soon()));
    other_ = static_cast<pid_t>(process);
    EXPECT_OK(c_->barrier(soon()));
  }

  /// What rank 0 does until its deadline of a second has passed.
  template <class Call>
  void expect_end_in_time(Call&& call) {
    const TimePoint begin = std::chrono::steady_clock::now();
    const Status s = call(Deadline::after(std::chrono::seconds(1)));
    EXPECT_EQ(s.code(), Code::kDeadlineExceeded) << s.to_string();
    EXPECT_EQ(c_->status().code(), Code::kDeadlineExceeded);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
    EXPECT_TRUE(is_stopped(other_));
  }
  void stop() {
    ASSERT_EQ(::kill(other_, SIGSTOP), 0);
    while (!is_stopped(other_)) std::this_thread::yield();
  }
  /// MPI moves the rest when both ranks call it again; only then it can end in order.
  void TearDown() override {
    if (c_ == nullptr || c_->size() == 1) return;
    if (c_->rank() == 0) ::kill(other_, SIGCONT);
    while (c_->status().ok()) std::this_thread::yield();
    auto next = mpi::join_mpi();
    ASSERT_TRUE(next.ok()) << next.status().to_string();
    for (float whole = 0; whole == 0;) {
      whole = received_ == nullptr ? 1 : at(*received_, kLong - 1);
      ASSERT_TRUE((*next)->all_reduce(std::span(&whole, 1), ReduceOp::kMin, soon()).ok());
    }
    c_.reset();
    EXPECT_OK((*next)->finalize(soon()));
  }

  std::unique_ptr<Communicator> c_;
  pid_t other_ = 0;
  std::vector<float> short_ = std::vector<float>(kShort, 1);
  /// MPI may use it as long as the process lives.
  static std::vector<float>* make_long(float value) {
    return new std::vector<float>(kLong, value);  // NOLINT
  }
  /// Receives from the other one, and returns when it is in the middle.
  Work receive_a_part(Rank from) {
    Work moved = c_->recv_async(*received_, from, 2);
    while (at(*received_, kBegun) == 0 && c_->status().ok()) std::this_thread::yield();
    return moved;
  }
  std::vector<float>* received_ = nullptr;
};

TEST_F(MpiStopped, TheSenderOfAShortMessage) {
  Work sent;
  if (c_->rank() == 1) sent = c_->send_async(short_, 0, 2);
  const Status met = c_->barrier(soon());
  if (c_->rank() != 0) return;  // Stopped in the barrier, it finds the failure there.
  EXPECT_OK(met);
  stop();
  expect_end_in_time([&](Deadline by) { return c_->recv(short_, 1, 2, by); });
}

TEST_F(MpiStopped, TheSenderOfALongMessage) {
  Work moved;
  if (c_->rank() == 1) moved = c_->send_async(*make_long(1), 0, 2);
  if (c_->rank() != 0) return;
  received_ = make_long(0);
  moved = receive_a_part(1);
  stop();
  ASSERT_EQ(at(*received_, kLong - 1), 0) << "stopped too late";
  expect_end_in_time([&](Deadline by) { return c_->recv(short_, 1, 3, by); });
  EXPECT_EQ(moved.wait().code(), Code::kDeadlineExceeded);
}

TEST_F(MpiStopped, TheReceiverOfALongMessage) {
  std::vector<float>* const data = make_long(c_->rank() == 0 ? 1 : 0);
  EXPECT_OK(c_->barrier(soon()));
  if (c_->rank() == 0) {
    expect_end_in_time([&](Deadline by) { return c_->send(*data, 1, 2, by); });
  }
  if (c_->rank() != 1) return;
  received_ = data;
  Work moved = receive_a_part(0);
  ASSERT_TRUE(c_->status().ok()) << "the deadline has passed already";
  ::raise(SIGSTOP);
}

/// A short message that MPI does not send at once, and whose sender makes no call for long.
TEST(MpiSender, NeedNotCallWhileAShortMessageIsReceived) {
  auto joined = mpi::join_mpi();
  ASSERT_TRUE(joined.ok()) << joined.status().to_string();
  Communicator& c = **joined;
  if (c.size() == 1) GTEST_SKIP() << "set-up: it takes two ranks (mpiexec -n 2)";
  for (const bool at_once : {true, false}) {
    std::vector<float> data(kShort, 1);
    EXPECT_OK(c.barrier(soon()));
    if (c.rank() == 0) {
      EXPECT_OK(at_once ? c.send(data, 1, 1) : c.send_async(data, 1, 1).wait());
      const Deadline computes = Deadline::after(std::chrono::seconds(2));
      while (!computes.expired()) std::this_thread::yield();
    } else if (c.rank() == 1) {
      const TimePoint begin = std::chrono::steady_clock::now();
      EXPECT_OK(c.recv(data, 0, 1, soon()));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    }
  }
  EXPECT_OK(c.finalize(soon()));
}

}  // namespace
}  // namespace stormo::comm
