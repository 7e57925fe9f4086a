#include <stormo/codec/speed.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/rng.h>
#include <stormo/codec/low_rank.h>

namespace stormo {
namespace {

/// A matrix of as many rows as columns, of the size of a bucket.
constexpr std::int64_t kRows = 512;
constexpr std::int64_t kNumbers = kRows * kRows;
constexpr int kRounds = 4;  ///< the first use of memory takes longer than others

/// Of the fastest round, for each number.
double shortest(const std::function<void()>& prepare, const std::function<void()>& work) {
  const RealClock clock;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    prepare();
    const TimePoint begin = clock.now();
    work();
    best = std::min(best, std::chrono::duration<double>(clock.now() - begin).count());
  }
  return best / static_cast<double>(kNumbers);
}

std::vector<float> sample() {
  Rng rng(1, "codec speed");
  std::vector<float> out(kNumbers);
  for (float& v : out) v = static_cast<float>(rng.uniform()) - 0.5f;
  return out;
}

CodecSpeed speed_of_codes(const CodecRow& row, double density) {
  const CodeKey key{.seed = 1, .density = density};
  const std::vector<float> original = sample();
  std::vector<float> values = original;
  std::vector<std::byte> code(static_cast<std::size_t>(row.bytes(kNumbers, density)));
  const double encode =
      shortest([&] { values = original; }, [&] { row.encode(values, code.data(), key); });
  const double decode = shortest([] {}, [&] { row.decode_add(code.data(), values, key); });
  return {.encode = encode, .decode = decode};
}

CodecSpeed speed_of_factors(int matrix_rank) {
  const codec::LowRank form({{.rows = kRows, .columns = kRows}}, matrix_rank);
  std::vector<float> values = sample(), lost(values.size());
  std::vector<float> left(static_cast<std::size_t>(form.left_numbers())),
      right(static_cast<std::size_t>(form.right_numbers())), own_right(right.size());
  const auto step = [&] {
    form.prepare_right(right, /*seed=*/1);
    form.make_left(values, right, left);
    form.orthonormalise_left(left);
    form.make_right(values, left, own_right);
    std::ranges::copy(own_right, right.begin());
    form.deliver(left, own_right, right, values, lost);
  };
  return {.encode = shortest([] {}, step)};
}

CodecSpeed speed_of_copies() {
  const std::vector<float> original = sample();
  std::vector<float> values(original.size());
  const double copy = shortest([] {}, [&] { std::ranges::copy(original, values.begin()); });
  return {.encode = copy, .decode = copy};
}

}  // namespace

CodecSpeed measure_speed(Codec codec) {
  const CodecRow& row = row_of(codec);
  if (row.has_factors()) return speed_of_factors(codec.matrix_rank);
  if (row.encodes()) return speed_of_codes(row, codec.density);
  return row.type ? speed_of_copies() : CodecSpeed{};
}

double seconds_of_sum(Codec codec, const CodecSpeed& speed, double numbers, int ranks) {
  if (ranks <= 1 || codec.kind == Codec::kNone) return 0;
  if (row_of(codec).sums != CodecSums::kPerMessage) {
    return numbers * (speed.encode + speed.decode);
  }
  // each rank's terms and one part of the sums; the terms of that part, and all sums
  return numbers * ((1 + 1.0 / ranks) * speed.encode + 2 * speed.decode);
}

}  // namespace stormo
