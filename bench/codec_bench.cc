// How fast codecs encode and decode, beside memcpy of the same numbers: one thread, a part of 4
// million float32 numbers of a normal distribution, all systems one after the other in each round.
// A line of JSON for each codec; "of_memcpy" are medians of the ratios of a round.
//
//   codec_bench [ROUNDS] [DENSITY]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <vector>

#include <bench/statistics.h>
#include <stormo/base/rng.h>
#include <stormo/codec/codec.h>

namespace {

using namespace stormo;

constexpr std::size_t kNumbers = 1 << 22;

std::vector<float> normal_numbers() {
  Rng rng(1, "codec_bench");
  std::vector<float> out(kNumbers);
  for (float& v : out) {
    const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
    v = static_cast<float>(radius * std::cos(2 * std::numbers::pi * rng.uniform()));
  }
  return out;
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Times {
  std::vector<double> copy, encode, decode;
};

Times measure(const CodecRow& row, double density, int rounds, const std::vector<float>& numbers) {
  const CodeKey key{.seed = 1, .density = density};
  std::vector<float> values(kNumbers), copied(kNumbers);
  const std::int64_t bytes = row.bytes(static_cast<std::int64_t>(kNumbers), density);
  std::vector<std::byte> code(static_cast<std::size_t>(bytes));
  Times out;
  for (int round = -1; round < rounds; ++round) {
    values = numbers;
    const double encode = seconds_of([&] { row.encode(values, code.data(), key); });
    const double decode = seconds_of([&] { row.decode_add(code.data(), values, key); });
    const double copy =
        seconds_of([&] { std::memcpy(copied.data(), numbers.data(), 4 * kNumbers); });
    if (round < 0) continue;  // the first use of memory counts for nobody
    out.copy.push_back(copy);
    out.encode.push_back(encode);
    out.decode.push_back(decode);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const double density = argc > 2 ? std::atof(argv[2]) : Codec().density;
  if (rounds < 1 || !(density > 0 && density <= 1)) {
    std::fprintf(stderr, "usage: codec_bench [ROUNDS] [DENSITY]\n");
    return 2;
  }
  const std::vector<float> numbers = normal_numbers();
  for (const CodecRow& row : codec_rows()) {
    if (row.encode == nullptr) continue;
    const Times t = measure(row, density, rounds, numbers);
    const auto speed = [](const std::vector<double>& seconds) {
      return 4e-9 * kNumbers / bench::median(seconds);
    };
    const nlohmann::json line = {
        {"codec", to_string(Codec(row.codec, density))},
        {"rounds", rounds},
        {"bytes_per_number",
         static_cast<double>(row.bytes(static_cast<std::int64_t>(kNumbers), density)) / kNumbers},
        {"gigabytes_per_second",
         {{"memcpy", speed(t.copy)}, {"encode", speed(t.encode)}, {"decode_add", speed(t.decode)}}},
        {"of_memcpy",
         {{"encode", bench::ratios(t.copy, t.encode).median},
          {"decode_add", bench::ratios(t.copy, t.decode).median}}}};
    std::printf("%s\n", line.dump().c_str());
  }
}
