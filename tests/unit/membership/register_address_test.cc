#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/membership/etcd_register.h>
#include <stormo/membership/quorum_register.h>
#include <stormo/membership/register_address.h>

namespace stormo::membership {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string complaint(std::string_view address) {
  const auto reg = open_register(address, {.job = "digits"});
  if (reg.ok()) return {};
  EXPECT_EQ(reg.status().code(), Code::kInvalidArgument);
  return reg.status().message();
}
/// What a register says that is asked too late: nothing has been connected.
std::string asked_too_late(std::string_view address) {
  const auto reg = open_register(address, {.job = "digits"});
  if (!reg.ok()) return reg.status().to_string();
  return (*reg)->read(Deadline::after(Duration::zero())).status().message();
}

TEST(RegisterAddressTest, TheJobsOwnAcceptors) {
  EXPECT_THAT(asked_too_late("quorum://10.0.0.1:4000"), HasSubstr("of 1 acceptors"));
  const std::string three = asked_too_late("quorum://10.0.0.1:4000,[fd00::2]:4001,c:4002");
  EXPECT_THAT(three, HasSubstr("of 3 acceptors"));
  EXPECT_THAT(three, HasSubstr("[fd00::2]:4001"));
}

TEST(RegisterAddressTest, WrongAddressesAreToldInFull) {
  EXPECT_THAT(complaint(""), HasSubstr("write quorum://"));
  EXPECT_THAT(complaint("consul://a:1"), HasSubstr("write quorum://"));
  EXPECT_THAT(complaint("quorum://"), HasSubstr("it has no host"));
  EXPECT_THAT(complaint("quorum://a:1,b:2,c:3,d:4"), HasSubstr("at most 3 acceptors"));
  const std::string two = complaint("quorum://a,b:x");
  EXPECT_THAT(two, HasSubstr("'a' has no port"));
  EXPECT_THAT(two, HasSubstr("'b:x'"));
}

#ifdef STORMO_HAVE_ETCD
TEST(RegisterAddressTest, EndpointsAndKeyOfEtcd) {
  EXPECT_THAT(asked_too_late("etcd://10.0.0.1,b:4000"),
              HasSubstr("key '/stormo/digits', has not answered in time (10.0.0.1:2379: not asked; "
                        "b:4000: not asked)"));
  EXPECT_THAT(asked_too_late("etcd://me@a/"), HasSubstr("key '/stormo/digits'"));
  EXPECT_THAT(asked_too_late("etcd://a/training/b"), HasSubstr("key '/training/b/digits'"));
}

TEST(RegisterAddressTest, WrongAddressesOfEtcdAreToldWithoutPasswords) {
  const std::string why = complaint("etcd://me:hush@a:b,c:d");
  EXPECT_THAT(why, HasSubstr("a password does not belong into an address"));
  EXPECT_THAT(why, HasSubstr("'a:b'"));
  EXPECT_THAT(why, HasSubstr("'c:d'"));
  EXPECT_THAT(why, Not(HasSubstr("hush")));
  EXPECT_THAT(complaint("etcd://@a"), HasSubstr("no user before '@'"));
  EXPECT_THAT(complaint("etcd:///prefix"), HasSubstr("it has no host"));
}
#else
TEST(RegisterAddressTest, WithoutLibcurlEtcdIsRefused) {
  EXPECT_THAT(complaint("etcd://a"), HasSubstr("built without libcurl"));
}
#endif

}  // namespace
}  // namespace stormo::membership
