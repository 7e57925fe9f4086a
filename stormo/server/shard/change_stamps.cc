#include <stormo/server/shard/change_stamps.h>

#include <algorithm>
#include <atomic>

namespace stormo::server {
namespace {

// Who reads a version has seen the store that made it current, and so the stamps before it.
std::uint64_t load(std::uint64_t& stamp) {
  return std::atomic_ref(stamp).load(std::memory_order_relaxed);
}

/// A writer that was stopped may come late: a stamp does not become less.
void raise(std::uint64_t& stamp, std::uint64_t version) {
  const std::atomic_ref word(stamp);
  std::uint64_t old = word.load(std::memory_order_relaxed);
  while (old < version && !word.compare_exchange_weak(old, version, std::memory_order_relaxed)) {
  }
}

}  // namespace

ChangeStamps::ChangeStamps(std::span<const ShardPiece> pieces)
    : pieces_(pieces.begin(), pieces.end()) {
  first_.push_back(0);
  for (const ShardPiece& piece : pieces_) {
    first_.push_back(first_.back() + 1 + (piece.bytes() + kBlockBytes - 1) / kBlockBytes);
  }
}

void ChangeStamps::initialise() const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) stamps_[first_[i]] = 0;
}

std::int64_t ChangeStamps::elements_of_block(std::size_t piece) const {
  return static_cast<std::int64_t>(kBlockBytes / size_of(pieces_[piece].dtype));
}

void ChangeStamps::note_all(std::uint64_t version) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) raise(stamps_[first_[i]], version);
}

void ChangeStamps::note(const PushedGradient& gradient, bool only_rows,
                        std::uint64_t version) const {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const PushedPiece& piece = gradient.piece(i);
    const std::int64_t length = piece.rows.row_length;
    if (piece.array != nullptr || (length > 0 && !only_rows)) {
      raise(stamps_[first_[i]], version);
      continue;
    }
    for (const std::int64_t row : piece.rows.indices) {
      note({.piece = i, .begin = row * length, .end = (row + 1) * length}, version);
    }
  }
}

void ChangeStamps::note(const ChangedRange& range, std::uint64_t version) const {
  const std::int64_t size = elements_of_block(range.piece);
  std::uint64_t* const blocks = stamps_ + first_[range.piece] + 1;
  for (std::int64_t b = range.begin / size; b <= (range.end - 1) / size; ++b) {
    raise(blocks[b], version);
  }
}

std::vector<ChangedRange> ChangeStamps::since(std::uint64_t version) const {
  std::vector<ChangedRange> out;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].elements() == 0) continue;
    if (load(stamps_[first_[i]]) > version) {
      out.push_back({.piece = i, .begin = 0, .end = pieces_[i].elements()});
    } else {
      add_blocks(i, version, out);
    }
  }
  return out;
}

void ChangeStamps::add_blocks(std::size_t piece, std::uint64_t version,
                              std::vector<ChangedRange>& out) const {
  const std::int64_t size = elements_of_block(piece), elements = pieces_[piece].elements();
  std::uint64_t* const blocks = stamps_ + first_[piece] + 1;
  for (std::int64_t begin = 0; begin < elements; begin += size) {
    if (load(blocks[begin / size]) <= version) continue;
    const std::int64_t end = std::min(begin + size, elements);
    const bool goes_on = !out.empty() && out.back().piece == piece && out.back().end == begin;
    if (goes_on) {
      out.back().end = end;
    } else {
      out.push_back({.piece = piece, .begin = begin, .end = end});
    }
  }
}

}  // namespace stormo::server
