// Which codecs lose least, and how long they take.
#include <stormo/codec/loss_order.h>
#include <stormo/codec/speed.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stormo {
namespace {

std::size_t place_of(Codec::Kind codec) {
  const auto all = least_lossy_first();
  return static_cast<std::size_t>(std::ranges::find(all, codec, &CodecLoss::codec) - all.begin());
}

TEST(LossOrder, HasEachCodecOnce) {
  EXPECT_EQ(least_lossy_first().size(), codec_rows().size());
  for (const CodecRow& row : codec_rows()) {
    EXPECT_EQ(std::ranges::count(least_lossy_first(), row.codec, &CodecLoss::codec), 1) << row.word;
  }
}

TEST(LossOrder, BeginsWithNothingLostAndNeedsFewerBytesFromTypesToFewNumbers) {
  EXPECT_EQ(place_of(Codec::kNone), 0u);
  const std::vector<Codec::Kind> chain = {Codec::kNone, Codec::kBFloat16, Codec::kInt8,
                                          Codec::kInt4, Codec::kSign,     Codec::kTopK};
  for (std::size_t i = 1; i < chain.size(); ++i) {
    EXPECT_LT(place_of(chain[i - 1]), place_of(chain[i])) << to_string(chain[i]);
  }
}

TEST(LossOrder, NobodyGetsRandomKUnasked) {
  for (const CodecLoss& loss : least_lossy_first()) {
    EXPECT_EQ(loss.is_automatic, loss.codec != Codec::kRandomK) << to_string(loss.codec);
  }
}

TEST(CodecSpeed, IsMeasuredOfEachCodec) {
  for (const CodecRow& row : codec_rows()) {
    const CodecSpeed speed = measure_speed(row.codec);
    EXPECT_EQ(speed.encode > 0, row.codec != Codec::kNone) << row.word;
    EXPECT_EQ(speed.decode > 0, row.codec != Codec::kNone && !row.has_factors()) << row.word;
    EXPECT_LT(speed.encode + speed.decode, 1e-3) << row.word << ": seconds for one number";
  }
}

TEST(CodecSpeed, ASumEncodesTermsAndItsPartAndDecodesBoth) {
  const CodecSpeed speed{.encode = 3, .decode = 5};
  EXPECT_DOUBLE_EQ(seconds_of_sum(Codec::kInt8, speed, 100, 4), 100 * (1.25 * 3 + 2 * 5));
  EXPECT_DOUBLE_EQ(seconds_of_sum(Codec::kRandomK, speed, 100, 4), 100 * (3 + 5));
  EXPECT_DOUBLE_EQ(seconds_of_sum(Codec::kBFloat16, speed, 100, 4), 100 * (3 + 5));
  EXPECT_EQ(seconds_of_sum(Codec::kInt8, speed, 100, 1), 0) << "nothing travels";
  EXPECT_EQ(seconds_of_sum(Codec::kInt8, speed, 0, 4), 0);
}

}  // namespace
}  // namespace stormo
