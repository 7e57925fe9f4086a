#include <gmock/gmock.h>

#include <stormo/membership/epoch_record.h>

namespace stormo::membership {
namespace {

using ::testing::HasSubstr;

EpochRecord good() {
  return {
      .job = "digits",
      .epoch = 3,
      .members = {{.identity = "a/0", .incarnation = 1, .address = "10.0.0.1:4000"},
                  {.identity = "b/0", .incarnation = 7, .address = "10.0.0.2:4000", .shares = 3}},
      .base_step = 120,
      .state_hash = 1,
      .plan_hash = 2,
      .donors = {"a/0"},
      .group = 4};
}

TEST(EpochRecord, IsTheSameAfterItWasSent) {
  const auto copy = decode_record(encode_record(good()));
  ASSERT_TRUE(copy.ok()) << copy.status().to_string();
  EXPECT_EQ(*copy, good());
}

TEST(EpochRecord, IsSmall) { EXPECT_LT(encode_record(good()).size(), 160U); }

TEST(EpochRecord, AllThatIsWrongIsSaid) {
  EpochRecord record = good();
  record.job.clear();
  record.epoch = 0;
  record.members.push_back(record.members[0]);
  record.members[1].shares = 0;
  record.members[1].address.clear();
  record.donors.emplace_back("c/0");
  const Status why = check(record);
  EXPECT_EQ(why.code(), Code::kInvalidArgument);
  for (const char* part :
       {"the name of the job has 1 to 256 bytes, not 0", "epoch 0 is that of no record",
        "a/0 is a member twice", "b/0 has no share of the batch",
        "the address of b/0 has 1 to 256 bytes, not 0", "the donor c/0 is no member"}) {
    EXPECT_THAT(why.message(), HasSubstr(part));
  }
  EXPECT_TRUE(check(good()).ok());
}

TEST(EpochRecord, NobodyIsNoJob) {
  EpochRecord record = good();
  record.members.clear();
  record.donors.clear();
  EXPECT_THAT(check(record).message(), HasSubstr("1 to 16384 members, not 0"));
}

TEST(EpochRecord, DamagedBytesAreRefused) {
  const std::string bytes = encode_record(good());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_EQ(decode_record(bytes.substr(0, n)).status().code(), Code::kCorrupt) << n;
  }
  EXPECT_EQ(decode_record(bytes + "x").status().code(), Code::kCorrupt);
  EpochRecord record = good();
  record.donors = {"c/0"};
  EXPECT_EQ(decode_record(encode_record(record)).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace stormo::membership
