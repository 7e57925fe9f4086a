// Runs a fuzz target without a fuzzer: its seeds, the given files (inputs that once failed), and
// seeded mutations of all of them.
//   replay [--runs N] [--seed N] [--write FOLDER] [FILE...]
// --write puts the seeds into a folder, for libFuzzer to start from.
#include <stormo/base/rng.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/fuzz.h"

namespace {

using stormo::Rng;

void run(const std::string& input) {
  // a copy of its own, so that sanitizers see every byte read beyond its end
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::string mutate(std::string text, const std::vector<std::string>& others, Rng& rng) {
  for (auto i = 1 + rng.below(4); i > 0; --i) {
    if (text.empty()) text = others[rng.below(others.size())];
    if (text.empty()) return text;
    const std::size_t at = rng.below(text.size());
    switch (rng.below(6)) {
      case 0: text[at] = static_cast<char>(text[at] ^ (1 << rng.below(8))); break;
      case 1: text[at] = static_cast<char>(rng.below(256)); break;
      case 2: text.insert(at, 1, static_cast<char>(rng.below(256))); break;
      case 3: text.erase(at, 1 + rng.below(8)); break;
      case 4: text.insert(at, text.substr(rng.below(text.size()), rng.below(64))); break;
      default: {
        const std::string& other = others[rng.below(others.size())];
        text = text.substr(0, at) + other.substr(rng.below(other.size() + 1));
      }
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0;
  std::uint64_t seed = 1;
  std::string folder;
  std::vector<std::string> inputs = stormo::fuzz::seeds();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--runs" && has_value) {
      runs = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && has_value) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--write" && has_value) {
      folder = argv[++i];
    } else {
      std::ifstream in(word, std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  }
  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      std::ofstream(folder + "/" + std::to_string(i), std::ios::binary) << inputs[i];
    }
    return 0;
  }
  for (const std::string& input : inputs) run(input);
  for (std::uint64_t i = 0; i < runs; ++i) {
    Rng rng(seed, "fuzz replay", i);
    run(mutate(inputs[rng.below(inputs.size())], inputs, rng));
  }
  std::printf("%zu inputs and %llu mutations, seed %llu\n", inputs.size(),
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed));
  return 0;
}
