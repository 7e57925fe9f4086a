// Ranks that measure at the same time.
#include <stormo/train/estimate/measure_together.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <stormo/train/estimate/at_once.h>

namespace stormo::train {
namespace {

using ::testing::HasSubstr;

TEST(AtOnce, ProcessesMeetAndTheirTextsReturn) {
  const std::string large(1 << 20, 'x');
  const auto texts = at_once(3, [&](int, const Meet& meet) -> Result<std::string> {
    for (int i = 0; i < 100; ++i) meet();
    return std::to_string(::getpid()) + large;
  });
  ASSERT_TRUE(texts.ok()) << texts.status().to_string();
  EXPECT_EQ(std::set<std::string>(texts->begin(), texts->end()).size(), 3u);
  for (const std::string& text : *texts) EXPECT_TRUE(text.ends_with(large));
}

TEST(AtOnce, AFailureEndsThoseThatWaitForIt) {
  const std::vector<std::function<Result<std::string>()>> failures = {
      [] { return Result<std::string>(invalid_argument("no samples")); },
      []() -> Result<std::string> { throw std::runtime_error("a thrown text"); },
      []() -> Result<std::string> {
        ::raise(SIGKILL);
        return std::string();
      }};
  const std::vector<std::string> expected = {"no samples", "a thrown text", "was killed"};
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const auto texts = at_once(2, [&](int rank, const Meet& meet) -> Result<std::string> {
      meet();
      if (rank == 1) return failures[i]();
      meet();
      return std::string();
    });
    EXPECT_FALSE(texts.ok());
    EXPECT_THAT(texts.status().message(), HasSubstr(expected[i]));
  }
}

TEST(Measurements, AreTheSameAfterTheirTextIsRead) {
  StepMeasurement m{.times = {.forward = {0.1, 0.2},
                              .backward = {0.3, 1e-9},
                              .backward_input = {},
                              .backward_weight = {},
                              .load = 1.0 / 3,
                              .loss = 2,
                              .norm = 3,
                              .update = 4,
                              .gradient = 5},
                    .activations = {1, INT64_MAX},
                    .outputs = {5, 6}};
  const auto read = measurements_of(to_text({m, m})).take_or_throw();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(to_text(read), to_text({m, m}));
  EXPECT_EQ(read[1].times.load, m.times.load);
  EXPECT_EQ(read[1].times.gradient, m.times.gradient);
  EXPECT_EQ(read[0].activations, m.activations);
  EXPECT_FALSE(measurements_of("[[1]]").ok());
  const StepMeasurement middle = between(read[0], StepMeasurement(m), 0.5);
  EXPECT_EQ(middle.times.forward, m.times.forward);
  EXPECT_EQ(middle.times.gradient, m.times.gradient);
}

TEST(Measurements, OfSeveralRoundsTheMedianOrTheShortestTimesCount) {
  std::vector<StepMeasurement> rounds;
  for (const double slow : {3.0, 1.0, 9.0}) {
    rounds.push_back({.times = {.forward = {slow, 10 / slow},
                                .backward = {2 * slow, 1},
                                .load = slow,
                                .loss = slow,
                                .norm = slow,
                                .update = slow,
                                .gradient = slow},
                      .activations = {},
                      .outputs = {}});
  }
  rounds[0].times.backward_input = {4, 0.25};  // of 6 and 1
  rounds[0].times.backward_weight = {2, 0.75};
  const analysis::ComputeTimes middle = medians(rounds).times, least = shortest(rounds).times;
  EXPECT_EQ(middle.forward, (std::vector<double>{3, 10.0 / 3}));
  EXPECT_EQ(middle.backward, (std::vector<double>{6, 1}));
  EXPECT_EQ(least.forward, (std::vector<double>{1, 10.0 / 9}));
  EXPECT_EQ(least.backward, (std::vector<double>{2, 1}));
  EXPECT_DOUBLE_EQ(least.backward_input[0], 4.0 / 3);
  EXPECT_DOUBLE_EQ(least.backward_weight[0], 2.0 / 3);
  EXPECT_EQ(medians({rounds[0], rounds[2]}).times.load, 6);  // between the two
  for (const auto& [times, seconds] : {std::pair(middle, 3.0), std::pair(least, 1.0)}) {
    EXPECT_EQ(times.load, seconds);
    EXPECT_EQ(times.loss, seconds);
    EXPECT_EQ(times.norm, seconds);
    EXPECT_EQ(times.update, seconds);
    EXPECT_EQ(times.gradient, seconds);
  }
}

}  // namespace
}  // namespace stormo::train
