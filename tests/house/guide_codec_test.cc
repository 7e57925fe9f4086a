// The example of docs/guides/add-a-codec.md.
#include <stormo/comm/codec/sum_of_codes.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "tests/unit/comm/ranks.h"

namespace stormo::codec::upper {

std::int64_t bytes(std::int64_t numbers, double /*density*/) { return (numbers + 1) / 2 * 4; }

void encode(std::span<float> values, std::byte* code, const CodeKey& /*key*/) {
  std::memset(code, 0, static_cast<std::size_t>(bytes(std::ssize(values), 1)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(code + 2 * i, &upper, 2);
    const auto decoded = std::bit_cast<float>(bits & 0xffff0000u);
    values[i] = std::isfinite(decoded) ? values[i] - decoded : 0;
  }
}

void decode_add(const std::byte* code, std::span<float> values, const CodeKey& /*key*/) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, code + 2 * i, 2);
    values[i] += std::bit_cast<float>(std::uint32_t{upper} << 16);
  }
}

}  // namespace stormo::codec::upper

namespace stormo {

constexpr CodecRow kUpper = {.word = "upper",
                             .sums = CodecSums::kPerMessage,
                             .error_feedback = true,
                             .bytes = codec::upper::bytes,
                             .encode = codec::upper::encode,
                             .decode_add = codec::upper::decode_add};

}  // namespace stormo

namespace stormo::comm {
namespace {

// What 7 bits lose of one sum comes with the next: the mean of many is nearer than one.
TEST(GuideCodec, SumsComeNearer) {
  constexpr std::int64_t kCount = 101;
  on_hosts({2, 1}, [](Communicator& c) {
    SumOfCodes sum(c, kUpper, kCount);
    std::vector<double> mean(kCount);
    double first = 0, worst = 0;
    for (int step = 0; step < 64; ++step) {
      std::vector<float> values(kCount);
      for (std::int64_t i = 0; i < kCount; ++i) {
        values[static_cast<std::size_t>(i)] = 1 / static_cast<float>(i + 3);
      }
      const std::vector<float> own = values;
      const Buffer buffer = values;
      const Request request{.kind = OperationKind::kAllReduce,
                            .in = {&buffer, 1},
                            .out = {&buffer, 1},
                            .encoding = &sum};
      EXPECT_OK(c.run(request, Deadline::never()));
      worst = 0;
      for (std::size_t i = 0; i < own.size(); ++i) {
        mean[i] += values[i] / 64.0;
        const double wanted = 3.0 * own[i];
        if (step == 0) first = std::max(first, std::fabs(values[i] - wanted) / wanted);
        worst = std::max(worst, std::fabs(mean[i] - wanted) / wanted);
      }
    }
    EXPECT_GT(first, 1e-3);
    EXPECT_LT(first, 2.0 / 128);
    EXPECT_LT(worst, first / 8);
  });
}

}  // namespace
}  // namespace stormo::comm
