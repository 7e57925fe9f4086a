#include <stormo/comm/program/partition.h>

namespace stormo::comm {
namespace {

std::vector<std::int64_t> running_sum(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> begins{0};
  for (const std::int64_t n : counts) begins.push_back(begins.back() + n);
  return begins;
}

/// Piece `index` of `pieces` of the elements from `begin` to `end`.
plan::Extent piece(std::int64_t begin, std::int64_t end, int index, int pieces) {
  const plan::Extent e = plan::chunk_extent(index, pieces, end - begin);
  return {begin + e.begin, begin + e.end};
}

}  // namespace

Partition Partition::even(int chunks, std::int64_t count) {
  Partition p;
  p.chunks_ = chunks;
  p.count_ = count;
  return p;
}

Partition Partition::by_rank(int chunks, std::span<const std::int64_t> counts) {
  Partition p;
  p.kind_ = Kind::kByRank;
  p.chunks_ = chunks;
  p.begins_ = running_sum(counts);
  return p;
}

Partition Partition::pairs(int chunks, Rank me, std::span<const std::int64_t> in_counts,
                           std::span<const std::int64_t> out_counts) {
  Partition p;
  p.kind_ = Kind::kPairs;
  p.chunks_ = chunks;
  p.me_ = me;
  p.begins_ = running_sum(in_counts);
  p.out_begins_ = running_sum(out_counts);
  return p;
}

plan::Extent Partition::of(plan::ChunkId chunk, Area area) const {
  switch (kind_) {
    case Kind::kEven: return plan::chunk_extent(chunk, chunks_, count_);
    case Kind::kByRank: {
      const int ranks = static_cast<int>(begins_.size()) - 1;
      const int pieces = chunks_ / ranks;
      const auto r = static_cast<std::size_t>(chunk / pieces);
      return piece(begins_[r], begins_[r + 1], chunk % pieces, pieces);
    }
    case Kind::kPairs: return pair(chunk, area);
  }
  return {};
}

plan::Extent Partition::pair(plan::ChunkId chunk, Area area) const {
  const auto ranks = begins_.size() - 1;
  const int pieces = chunks_ / static_cast<int>(ranks * ranks);
  const auto block = static_cast<std::size_t>(chunk / pieces);
  const std::size_t from = block / ranks;
  const std::size_t to = block % ranks;
  // a block that only passes through is as long as all others: parts of different size are sent
  // directly (Builder::forwards)
  const bool mine = from == static_cast<std::size_t>(me_);
  const std::int64_t length =
      mine ? begins_[to + 1] - begins_[to] : out_begins_[from + 1] - out_begins_[from];
  std::int64_t begin = 0;
  if (area == Area::kIn) begin = begins_[to];
  if (area == Area::kOut) begin = out_begins_[from];
  if (area == Area::kScratch) begin = static_cast<std::int64_t>(block) * length;
  return piece(begin, begin + length, chunk % pieces, pieces);
}

std::int64_t Partition::part_begin(Rank r, int ranks) const {
  if (kind_ != Kind::kEven) return begins_[static_cast<std::size_t>(r)];
  return of(r * (chunks_ / ranks), Area::kOut).begin;
}

}  // namespace stormo::comm
