#include "tests/conformance/register_conformance.h"

#include <gmock/gmock.h>

#include <atomic>
#include <mutex>

#include "tests/conformance/own_register.h"

namespace stormo::membership::test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// What a register is, in one process.
class MemoryRegister final : public RegisterUnderTest {
 public:
  std::unique_ptr<Register> client() override { return std::make_unique<Client>(*this); }

 private:
  class Client final : public Register {
   public:
    explicit Client(MemoryRegister& of) : of_(of) {}
    Result<EpochRecord> read(Deadline by) override {
      if (by.expired()) return Status(Code::kDeadlineExceeded, "too late");
      const std::lock_guard lock(of_.mutex_);
      return of_.present_;
    }
    Result<Swap> compare_and_swap(const EpochRecord& next, Deadline by) override {
      STORMO_RETURN_IF_ERROR(check(next));
      if (by.expired()) return Status(Code::kDeadlineExceeded, "too late");
      const std::lock_guard lock(of_.mutex_);
      const bool done = of_.present_.epoch + 1 == next.epoch;
      if (done) of_.present_ = next;
      return Swap{.done = done, .present = of_.present_};
    }

   private:
    MemoryRegister& of_;
  };
  std::mutex mutex_;
  EpochRecord present_;
};

INSTANTIATE_TEST_SUITE_P(
    Engines, RegisterConformance,
    testing::Values(RegisterEngine{"memory", [] { return std::make_unique<MemoryRegister>(); }},
                    RegisterEngine{"one_acceptor", [] { return std::make_unique<OwnRegister>(1); }},
                    RegisterEngine{"three_acceptors",
                                   [] { return std::make_unique<OwnRegister>(3); }}),
    [](const auto& engine) { return std::string(engine.param.name); });

TEST(OwnRegisterTest, OneOfThreeAcceptorsMayBeAway) {
  OwnRegister acceptors(3);
  const auto one = acceptors.client();
  ASSERT_TRUE(one->compare_and_swap(record(1, 1), soon())->done);
  acceptors.stop(0);
  ASSERT_TRUE(one->compare_and_swap(record(2, 2), soon())->done);
  EXPECT_EQ(acceptors.client()->read(soon())->epoch, 2U);
  acceptors.restart(0);
  acceptors.stop(1);  // the one that comes back has missed an epoch
  EXPECT_EQ(*one->read(soon()), record(2, 2));
  EXPECT_EQ(*acceptors.client()->read(soon()), record(2, 2));
}

TEST(OwnRegisterTest, WithoutAMajorityTheErrorComesInTimeAndNamesWhoIsMissing) {
  OwnRegister acceptors(3);
  const auto reg = acceptors.client();
  ASSERT_TRUE(reg->compare_and_swap(record(1, 1), soon())->done);
  acceptors.stop(1);
  acceptors.stop(2);
  for (const auto& client : {acceptors.client(), acceptors.client()}) {
    const TimePoint before = std::chrono::steady_clock::now();
    const Status why = client->compare_and_swap(record(2, 2), Deadline::after(300ms)).status();
    EXPECT_LT(std::chrono::steady_clock::now() - before, 15s);
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
    EXPECT_THAT(why.message(), HasSubstr("1 of 3 acceptors are reached, 2 are needed"));
    EXPECT_THAT(why.message(),
                HasSubstr(transport::to_string(acceptors.addresses()[2]) + ": connect to"));
    EXPECT_THAT(why.message(), HasSubstr("refused"));
  }
  acceptors.restart(2);
  EXPECT_EQ(reg->read(soon())->epoch, 1U);
}

TEST(OwnRegisterTest, AllMayBeRestartedAndForgetNothing) {
  OwnRegister acceptors(3);
  ASSERT_TRUE(acceptors.client()->compare_and_swap(record(1, 1), soon())->done);
  for (int i = 0; i < 3; ++i) acceptors.stop(i);
  for (int i = 0; i < 3; ++i) acceptors.restart(i);
  EXPECT_EQ(*acceptors.client()->read(soon()), record(1, 1));
}

TEST(OwnRegisterTest, CallsHaveAnOrderWhileAcceptorsComeAndGo) {
  OwnRegister acceptors(3);
  expect_order({.client = [&] { return acceptors.client(); },
                .take_away = [&](int i) { acceptors.stop(i); },
                .bring_back = [&](int i) { acceptors.restart(i); },
                .turns = 15,
                .each_call = 2s,
                .changes = 30});
}

TEST(OwnRegisterTest, WhoDoesNotKnowTheSecretGetsNothing) {
  OwnRegister acceptors(3);
  ASSERT_TRUE(acceptors.client()->compare_and_swap(record(1, 1), soon())->done);
  const Status why =
      acceptors.client(transport::Secret::random())->read(Deadline::after(300ms)).status();
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(why.message(), HasSubstr("0 of 3 acceptors are reached"));
  EXPECT_THAT(why.message(), HasSubstr("wrong secret"));
}

TEST(OwnRegisterTest, NoAcceptorCountsForAnother) {
  OwnRegister acceptors(3);
  const std::vector<transport::HostPort> right = acceptors.addresses();
  // one and the same acceptor as a majority
  acceptors.addresses() = {right[0], right[0], right[0]};
  const Status why = acceptors.client()->read(Deadline::after(300ms)).status();
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(why.message(), HasSubstr("1 of 3 acceptors are reached"));
  EXPECT_THAT(why.message(), HasSubstr("wrong rank"));
}

TEST(OwnRegisterTest, AnAcceptorWhoseDiskFailsDoesNotVote) {
  OwnRegister acceptors(1);
  const auto reg = acceptors.client();
  ASSERT_TRUE(reg->compare_and_swap(record(1, 1), soon())->done);
  // a folder in the place of the file that it writes
  const std::string blocked = acceptors.folder_of(0) + "/register.new";
  std::filesystem::create_directory(blocked);
  const Status why = reg->compare_and_swap(record(2, 2), Deadline::after(300ms)).status();
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(why.message(), HasSubstr("register.new: File exists"));
  std::filesystem::remove(blocked);
  EXPECT_EQ(reg->read(soon())->epoch, 1U);
  EXPECT_TRUE(reg->compare_and_swap(record(2, 2), soon())->done);
}

}  // namespace
}  // namespace stormo::membership::test
