#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/server/shard.h>

namespace stormo::server {

/// Elements [begin, end) of a piece of a shard. The struct is also sent.
struct ChangedRange {
  std::uint64_t piece = 0;
  std::int64_t begin = 0, end = 0;
  bool operator==(const ChangedRange&) const = default;
};

/// Which elements of a shard have changed since a version: with each piece, and with each block of
/// a piece, lies the version of its last change. Stamps only grow, so those of a change that was
/// given up say too much, and never too little. All functions may be called at the same time.
class ChangeStamps {
 public:
  static constexpr std::size_t kBlockBytes = 128;

  explicit ChangeStamps(std::span<const ShardPiece> pieces);
  /// Memory that is needed, of which the part of blocks is used with ranges only: 1/16 of a piece.
  std::size_t bytes() const { return first_.back() * sizeof(std::uint64_t); }
  /// `memory` is aligned to 8 and stays borrowed.
  void attach(std::byte* memory) { stamps_ = reinterpret_cast<std::uint64_t*>(memory); }
  /// Nothing has changed. Does not touch stamps of blocks, which are 0 in memory that is new.
  void initialise() const;

  /// From `version` on all is other,
  void note_all(std::uint64_t version) const;
  /// or all elements of a piece that has a gradient; with `only_rows` of a gradient in rows these.
  void note(const PushedGradient& gradient, bool only_rows, std::uint64_t version) const;
  /// or a range, which is not empty.
  void note(const ChangedRange& range, std::uint64_t version) const;
  /// What may be other now than it was at `version`: in order, without overlap. It covers whole
  /// blocks.
  std::vector<ChangedRange> since(std::uint64_t version) const;

 private:
  void add_blocks(std::size_t piece, std::uint64_t version, std::vector<ChangedRange>& out) const;
  std::int64_t elements_of_block(std::size_t piece) const;

  std::vector<ShardPiece> pieces_;
  std::vector<std::size_t> first_;  // by piece: its own stamp, which those of its blocks follow
  std::uint64_t* stamps_ = nullptr;
};

}  // namespace stormo::server
