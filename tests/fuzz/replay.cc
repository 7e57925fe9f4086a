// Runs a fuzz target without a fuzzer: its seeds, the given files (inputs that once failed), and
// mutations of all of them.
//   replay [--runs N] [--seed N] [--only I] [--write FOLDER] [FILE...]
// The mutations are new ones every time. The seed is printed before they start, and --seed or
// STORMO_FUZZ_SEED repeats them; a target that aborts says which mutation it was, and --only I runs
// that one alone. --write puts the seeds into a folder, for libFuzzer to start from.
#include <stormo/base/rng.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>

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

// What a failure is reproduced with; read by the handler of SIGABRT.
unsigned long long g_seed = 0;
volatile unsigned long long g_mutation = 0;

extern "C" void say_which_mutation(int) {
  // not safe in every signal handler; here it follows abort(), in a program of one thread
  std::fprintf(stderr, "mutation %llu failed; repeat it with --seed %llu --only %llu\n", g_mutation,
               g_seed, g_mutation);
}

std::uint64_t choose_seed() {
  if (const char* const text = std::getenv("STORMO_FUZZ_SEED"); text != nullptr && *text != '\0') {
    return std::strtoull(text, nullptr, 10);
  }
  std::random_device device;
  return device();
}

void run_mutations(const std::vector<std::string>& inputs, std::uint64_t runs, std::uint64_t seed,
                   std::optional<std::uint64_t> only) {
  g_seed = seed;
  std::signal(SIGABRT, say_which_mutation);
  for (std::uint64_t i = only.value_or(0); i < (only ? *only + 1 : runs); ++i) {
    g_mutation = i;
    Rng rng(seed, "fuzz replay", i);
    run(mutate(inputs[rng.below(inputs.size())], inputs, rng));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> only;
  std::string folder;
  std::vector<std::string> inputs = stormo::fuzz::seeds();
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--runs" && has_value) {
      runs = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && has_value) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--only" && has_value) {
      only = std::strtoull(argv[++i], nullptr, 10);
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
  if (!seed) seed = choose_seed();
  std::printf("%zu inputs and %llu mutations, --seed %llu\n", inputs.size(),
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(*seed));
  std::fflush(stdout);
  for (const std::string& input : inputs) run(input);
  run_mutations(inputs, runs, *seed, only);
  return 0;
}
