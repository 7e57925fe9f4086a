#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/base/temporary_folder.h>
#include <stormo/checkpoint/file/safetensors_header.h>
#include <stormo/checkpoint/format/box.h>
#include <stormo/checkpoint/reader.h>
#include <stormo/checkpoint/writer.h>

// A small state without libtorch, and what saves it on several ranks.
namespace stormo::test {

namespace fs = std::filesystem;
using checkpoint::Piece;
using checkpoint::Snapshot;

/// A folder of its own for each test.
class FolderTest : public testing::Test {
 protected:
  const TemporaryFolder own_ = TemporaryFolder::create("checkpoint").take_or_throw();
  const fs::path& folder_ = own_.path();
};

struct TestTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;  ///< a function of name and step

  std::int64_t elements() const { return *checkpoint::num_elements(shape); }
};

/// Shapes with every kind of dimension, an even one larger than a block of checksums.
inline std::vector<TestTensor> test_state(std::int64_t step, std::int64_t large = 300) {
  std::vector<TestTensor> state = {{"bias", "F32", {7}, {}},
                                   {"empty", "F32", {0, 4}, {}},
                                   {"flags", "BOOL", {5, 3}, {}},
                                   {"half", "BF16", {3, 5, 7}, {}},
                                   {"large.weight", "F32", {large, 999}, {}},
                                   {"optimizer.momentum.bias", "F64", {7}, {}},
                                   {"scalar", "I64", {}, {}},
                                   {"unit", "F32", {1, 1, 11, 1}, {}}};
  for (TestTensor& t : state) {
    Rng rng(static_cast<std::uint64_t>(step), t.name);
    const auto width = *checkpoint::safetensors_dtype_bytes(t.dtype);
    t.bytes.resize(static_cast<std::size_t>(t.elements()) * width);
    for (char& c : t.bytes)
      c = static_cast<char>(t.dtype == "BOOL" ? rng.below(2) : rng.below(256));
  }
  return state;
}

inline std::vector<Piece> whole_pieces(const std::vector<TestTensor>& state) {
  std::vector<Piece> pieces;
  for (const TestTensor& t : state) {
    pieces.push_back({t.name, t.dtype, t.shape, 0, t.elements(), t.bytes.data(), nullptr});
  }
  return pieces;
}

inline Snapshot snapshot_of(const std::vector<TestTensor>& state, std::int64_t step, int rank = 0,
                            int ranks = 1) {
  return {.pieces = checkpoint::share_of(whole_pieces(state), rank, ranks),
          .step = step,
          .samples = 10 * step,
          .name = "test",
          .recipe_json = R"({"model":{"kind":"mlp"}})",
          .state_json = R"({"seed":5})",
          .torch_version = "2.13"};
}

/// Runs f(communicator) on `n` ranks that are threads.
template <class F>
void on_ranks(int n, const F& f) {
  auto group = comm::make_inproc_group(n).take_or_throw();
  std::vector<std::thread> threads;
  for (auto& member : group) threads.emplace_back([&f, &member] { f(*member); });
  for (std::thread& t : threads) t.join();
}

/// A save by one rank.
inline Result<std::string> save(const fs::path& folder, std::int64_t step, int keep = 9,
                                std::int64_t large = 300, const checkpoint::RunIdentity& run = {}) {
  const auto state = test_state(step, large);
  Result<std::string> path = std::string();
  on_ranks(1, [&](comm::Communicator& world) {
    Snapshot snapshot = snapshot_of(state, step);
    snapshot.run = run;
    path = checkpoint::save_checkpoint(world, folder, snapshot, keep);
  });
  return path;
}

/// Reads all of `state` from `reader` in `parts` ranges per tensor and compares.
inline void expect_holds(checkpoint::CheckpointReader& reader, const std::vector<TestTensor>& state,
                         int parts = 1) {
  EXPECT_EQ(reader.manifest().tensors.size(), state.size());
  for (const TestTensor& t : state) {
    const auto width = *checkpoint::safetensors_dtype_bytes(t.dtype);
    std::string read(t.bytes.size(), '\x55');
    for (int i = 0; i < parts; ++i) {
      const std::int64_t begin = t.elements() * i / parts, end = t.elements() * (i + 1) / parts;
      const Status status =
          reader.read(t.name, begin, end, read.data() + static_cast<std::size_t>(begin) * width);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(read, t.bytes) << t.name << " in " << parts << " parts";
  }
}

inline void expect_holds(const std::string& path, const std::vector<TestTensor>& state,
                         int parts = 1) {
  auto reader = checkpoint::CheckpointReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().to_string();
  expect_holds(*reader, state, parts);
}

inline std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void overwrite(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename());
  return found;
}

}  // namespace stormo::test
