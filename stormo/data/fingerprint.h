#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

namespace stormo::data {

/// Hash (XXH3-64) of a data set's content. What is in memory is hashed completely. What has to be
/// read for it costs no more than 1 GiB: of a larger range its size and 4096 blocks of 256 KiB at
/// equal distances are hashed, including the first and the last.
class Fingerprint {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;
  static constexpr std::size_t kBlocks = 4096;

  Fingerprint();
  ~Fingerprint();
  Fingerprint(const Fingerprint&) = delete;
  Fingerprint& operator=(const Fingerprint&) = delete;

  /// Fills `out` with the bytes of a range from `offset` on, a multiple of 64.
  using Reader = std::function<void(std::size_t offset, std::span<std::byte> out)>;

  void add(std::span<const std::byte> range);
  /// Adds a range of `bytes` that is not in memory, such as in a file. Up to kMostBytes it counts
  /// as one in memory.
  void add(std::size_t bytes, const Reader& read);
  void add(std::string_view text);
  void add(std::int64_t number);
  std::uint64_t value() const;

 private:
  void hash(std::span<const std::byte> bytes);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stormo::data
