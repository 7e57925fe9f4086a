#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>

#include <stormo/base/check.h>
#include <stormo/base/status.h>

namespace stormo {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_TRUE(static_cast<bool>(status));
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_EQ(status, ok_status());
}

TEST(Status, CarriesCodeAndMessage) {
  const Status status(Code::kPeerLost, "rank 3 died");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.to_string(), "peer lost: rank 3 died");
}

TEST(Status, ContextGrowsInFrontAndKeepsTheCode) {
  const Status inner(Code::kDeadlineExceeded, "recv from 1");
  const Status outer = inner.within("all_reduce #9").within("step 4");
  EXPECT_EQ(outer.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(outer.message(), "step 4: all_reduce #9: recv from 1");
  EXPECT_EQ(inner.message(), "recv from 1");
  EXPECT_TRUE(Status().within("step 4").ok());
}

TEST(Status, EqualWhenCodeAndMessageAre) {
  const Status a(Code::kIo, "disk");
  EXPECT_EQ(a, Status(Code::kIo, "disk"));
  EXPECT_FALSE(a == Status(Code::kIo, "net"));
  EXPECT_FALSE(a == Status(Code::kCorrupt, "disk"));
  EXPECT_FALSE(a == Status());
}

TEST(Status, ErrnoIsReadBeforeAnythingCanChangeIt) {
  errno = ENOENT;
  const Status status = errno_error("open x");
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(status.message(), "open x: No such file or directory");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  const int last = static_cast<int>(Code::kInterrupted);
  for (int code = 0; code <= last; ++code) names.insert(to_string(static_cast<Code>(code)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Error, CarriesTheStatusThroughAThrow) {
  try {
    throw_if_error(Status(Code::kMismatch, "rank 0 called barrier"));
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), Code::kMismatch);
    EXPECT_THAT(error.what(), HasSubstr("rank 0 called barrier"));
  }
  EXPECT_NO_THROW(throw_if_error(Status()));
}

Result<int> half(int x) {
  if (x % 2 != 0) return invalid_argument("odd");
  return x / 2;
}

Result<int> quarter(int x) {
  STORMO_ASSIGN_OR_RETURN(const int h, half(x));
  STORMO_ASSIGN_OR_RETURN(const int q, half(h));
  return q;
}

Status divisible_by_four(int x) {
  STORMO_RETURN_IF_ERROR(quarter(x).status().within("quarter"));
  return {};
}

TEST(Result, HoldsAValueOrTheReasonForNone) {
  EXPECT_EQ(*half(8), 4);
  EXPECT_TRUE(half(8).status().ok());
  EXPECT_FALSE(half(7).ok());
  EXPECT_EQ(half(7).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(half(8).take_or_throw(), 4);
  EXPECT_THROW(half(7).take_or_throw(), Error);
}

TEST(Result, MacrosReturnTheFirstFailure) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_FALSE(quarter(6).ok());
  EXPECT_TRUE(divisible_by_four(8).ok());
  EXPECT_EQ(divisible_by_four(6).message(), "quarter: odd");
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(CheckDeathTest, PrintsConditionPlaceAndMessage) {
  EXPECT_DEATH(STORMO_CHECK(1 + 1 == 3, "arithmetic"), "arithmetic .1 . 1 == 3. at .*status_test");
  STORMO_CHECK(1 + 1 == 2, "arithmetic");
}

}  // namespace
}  // namespace stormo
