#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <stormo/observe/event_log.h>

namespace stormo::observe {
namespace {

/// The bytes of the records, without their checksums.
std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, file.data() + at, sizeof length);
    out.push_back(file.substr(at + 12, length));
    at += 12 + length + 4;
    EXPECT_LE(at, file.size());
  }
  return out;
}

/// A field of the form (tag, value) of a Summary, as protobuf writes it.
std::string scalar(const std::string& tag, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return '\x0a' + std::string(1, static_cast<char>(tag.size())) + tag + '\x15' + bytes;
}

TEST(EventLog, AFileBeginsAsEveryoneWritesIt) {
  std::ostringstream out;
  const EventLog log(out, 0);
  // length 24, and its checksum, as in every event file
  EXPECT_EQ(out.str().substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_THAT(out.str(), testing::HasSubstr("\x1a\x0d"
                                            "brain.Event:2"));
}

TEST(EventLog, AStepHasAScalarForEachValue) {
  std::ostringstream out;
  EventLog log(out, 16);
  log.on_start({.ranks = 2, .global_batch = 32});
  StepRecord step{.step = 300, .loss = 0.5, .learning_rate = 0.25, .samples_per_s = 64};
  step.share = {0.5, 0.25, 0, 0.125};
  step.samples = 9600;
  log.on_step(step);
  const std::string event = records_of(out.str()).at(1);
  EXPECT_THAT(event.substr(9), testing::StartsWith("\x10\xac\x02"));  // step 300
  for (const std::string& value :
       {scalar("loss_metrics/global_avg_loss", 0.5), scalar("lr", 0.25),
        scalar("throughput(samples/s)", 64), scalar("throughput(tps)", 512),
        scalar("n_tokens_seen", 153600), scalar("time_metrics/end_to_end(s)", 0.5),
        scalar("time_metrics/data_loading(s)", 0.0625),
        scalar("time_metrics/data_loading(%)", 12.5)}) {
    EXPECT_THAT(event, testing::HasSubstr(value));
  }
  EXPECT_THAT(event, testing::Not(testing::HasSubstr("grad_norm")));
  step.gradient_norm = 2;
  log.on_step(step);
  EXPECT_THAT(records_of(out.str()).at(2), testing::HasSubstr(scalar("grad_norm", 2)));
}

TEST(EventLog, ImagesHaveNoTokensAndEvaluationsTheirSplit) {
  std::ostringstream out;
  EventLog log(out, 0);
  log.on_step({.step = 1, .samples_per_s = 64});
  log.on_eval({.split = "validation", .step = 1, .loss = 2, .accuracy = 0.5});
  log.on_eval({.split = "test", .step = 1, .loss = 3});
  const std::vector<std::string> records = records_of(out.str());
  EXPECT_THAT(records.at(1), testing::Not(testing::HasSubstr("tps")));
  EXPECT_THAT(records.at(2), testing::HasSubstr(scalar("validation_metrics/loss", 2)));
  EXPECT_THAT(records.at(2), testing::HasSubstr(scalar("validation_metrics/accuracy", 0.5)));
  EXPECT_THAT(records.at(3), testing::EndsWith(scalar("test_metrics/loss", 3)));
}

TEST(EventLog, ARunThatGoesOnBeginsASession) {
  std::ostringstream out;
  EventLog log(out, 0);
  log.on_start({.first_step = 6});
  EXPECT_THAT(records_of(out.str()).at(1), testing::EndsWith("\x10\x07\x3a\x02\x08\x01"));
}

TEST(EventLog, NamesSortByTime) {
  EXPECT_EQ(EventLog::file_name(1700000000, "node7", 12),
            "events.out.tfevents.1700000000.node7.12");
}

}  // namespace
}  // namespace stormo::observe
