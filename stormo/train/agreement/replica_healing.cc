#include <stormo/train/agreement/replica_healing.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stormo/checkpoint/exchange.h>
#include <stormo/comm/agreement/agreement.h>

namespace stormo::train {
namespace {

using Hashes = std::vector<std::int64_t>;

constexpr std::uint32_t kTag = 0xb175;

std::vector<Rank> ranks_of(std::span<const int> part_of, int part) {
  std::vector<Rank> out;
  for (std::size_t r = 0; r < part_of.size(); ++r) {
    if (part_of[r] == part) out.push_back(static_cast<Rank>(r));
  }
  return out;
}

/// The votes of `ranks` on the column of a matrix with a row for each rank.
comm::Verdict vote(std::span<const std::int64_t> rows, std::size_t columns, std::size_t column,
                   const std::vector<Rank>& ranks) {
  Hashes votes;
  for (const Rank r : ranks) votes.push_back(rows[static_cast<std::size_t>(r) * columns + column]);
  return comm::majority_vote(votes);
}

/// The hashes of all ranks: their looks, and those of their blocks.
struct AllHashes {
  Hashes looks, blocks;
  std::size_t columns = 0;  // of `blocks`
};

Result<AllHashes> gather(comm::Communicator& world, std::span<const int> part_of,
                         const StateBlocks& mine, std::uint64_t look) {
  const auto ranks = static_cast<std::size_t>(world.size());
  Hashes own = {static_cast<std::int64_t>(mine.size()), std::bit_cast<std::int64_t>(look)};
  Hashes all(2 * ranks);
  STORMO_RETURN_IF_ERROR(world.all_gather(own, all));
  AllHashes out;
  std::map<int, std::int64_t> size_of;  // by part
  for (std::size_t r = 0; r < ranks; ++r) {
    if (size_of.try_emplace(part_of[r], all[2 * r]).first->second != all[2 * r]) {
      return Status(Code::kMismatch, fmt::format("replicas are no longer equal: the state of rank "
                                                 "{} has another size than that of others",
                                                 r));
    }
    out.columns = std::max(out.columns, static_cast<std::size_t>(all[2 * r]));
    out.looks.push_back(all[2 * r + 1]);
  }
  Hashes row(out.columns);  // zeros behind the last block
  const std::vector<std::uint64_t> hashes = mine.hashes();
  std::ranges::transform(hashes, row.begin(),
                         [](std::uint64_t h) { return std::bit_cast<std::int64_t>(h); });
  out.blocks.resize(out.columns * ranks);
  if (out.columns > 0) STORMO_RETURN_IF_ERROR(world.all_gather(row, out.blocks));
  return out;
}

Status send_right_bytes(comm::Communicator& world, StateBlocks& mine,
                        const WrongBlocks::Block& wrong) {
  if (world.rank() != wrong.right && world.rank() != wrong.rank) return {};
  std::vector<std::uint8_t> bytes(mine.bytes(wrong.block));
  if (world.rank() == wrong.right) {
    mine.read(wrong.block, bytes.data());
    return world.send(bytes, wrong.rank, kTag);
  }
  STORMO_RETURN_IF_ERROR(world.recv(bytes, wrong.right, kTag));
  mine.write(wrong.block, bytes.data());
  return {};
}

Status check_healed(comm::Communicator& world, const StateBlocks& mine, const AllHashes& all,
                    const std::vector<WrongBlocks::Block>& wrong) {
  std::int64_t failed = -1;
  for (const WrongBlocks::Block& w : wrong) {
    const auto right = static_cast<std::size_t>(w.right) * all.columns + w.block;
    if (w.rank == world.rank() &&
        std::bit_cast<std::int64_t>(mine.hash(w.block, w.block + 1)) != all.blocks[right]) {
      failed = w.rank;
    }
  }
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&failed, 1), comm::ReduceOp::kMax));
  if (failed < 0) return {};
  return Status(Code::kMismatch,
                fmt::format("the memory of rank {} does not keep what was written into it: take "
                            "its host out of service",
                            failed));
}

Status no_majority(comm::Communicator& world, std::span<const int> part_of, const StateBlocks& mine,
                   const WrongBlocks::Block& undecided) {
  std::string where = world.rank() == undecided.rank ? mine.place(undecided.block).text() : "";
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(world, where, undecided.rank));
  const int part = part_of[static_cast<std::size_t>(undecided.rank)];
  return Status(Code::kMismatch,
                fmt::format("replicas are no longer equal: ranks {} hold different bits in {}, "
                            "and no majority says which of them are right",
                            fmt::join(ranks_of(part_of, part), ", "), where));
}

/// What the rank of this block knows of it.
Result<WrongReplica::Held> tell_held(comm::Communicator& world, const StateBlocks& mine,
                                     const WrongBlocks::Block& wrong) {
  WrongReplica::Held held{.right = wrong.right};
  if (world.rank() == wrong.rank) held = {world.host(), mine.place(wrong.block), 1, wrong.right};
  std::array<std::int64_t, 2> elements = {held.first.first, held.first.last};
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(world, held.host, wrong.rank));
  STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(world, held.first.tensor, wrong.rank));
  STORMO_RETURN_IF_ERROR(world.broadcast(std::span<std::int64_t>(elements), wrong.rank));
  held.first.first = elements[0];
  held.first.last = elements[1];
  return held;
}

std::string held_text(Rank rank, const WrongReplica::Held& held) {
  return fmt::format(
      "rank {} (host {}) held other bits than the majority in {}{}; they are put right from rank "
      "{}",
      rank, held.host, held.first.text(),
      held.places > 1 ? fmt::format(" and {} more places", held.places - 1) : "", held.right);
}

/// Who read something else than most, although what they hold is equal.
std::vector<WrongReplica> find_misread(const AllHashes& all, std::span<const int> part_of) {
  std::vector<WrongReplica> out;
  for (int part = 0; part <= std::ranges::max(part_of); ++part) {
    const std::vector<Rank> ranks = ranks_of(part_of, part);
    if (ranks.empty()) continue;
    const comm::Verdict verdict = vote(all.looks, 1, 0, ranks);
    constexpr const char* kOnce =
        "read other bits of its state than it did when it looked again: memory or processor there "
        "cannot be trusted";
    if (!verdict.majority) {
      out.push_back({-1, fmt::format("one of ranks {} {}", fmt::join(ranks, ", "), kOnce)});
      continue;
    }
    for (const Rank at : verdict.differing) {
      const Rank rank = ranks[static_cast<std::size_t>(at)];
      out.push_back({rank, fmt::format("rank {} {}", rank, kOnce)});
    }
  }
  if (out.empty()) out.push_back({-1, "a sum over the ranks was wrong, what they hold is equal"});
  return out;
}

}  // namespace

WrongBlocks find_wrong_blocks(std::span<const std::int64_t> hashes, std::size_t blocks,
                              std::span<const int> part_of) {
  WrongBlocks out;
  for (int part = 0; part <= std::ranges::max(part_of); ++part) {
    const std::vector<Rank> ranks = ranks_of(part_of, part);
    for (std::size_t b = 0; b < blocks && !ranks.empty(); ++b) {
      const comm::Verdict verdict = vote(hashes, blocks, b, ranks);
      if (!verdict.majority) {
        if (!out.undecided) out.undecided = {ranks.front(), b, ranks.front()};
        continue;
      }
      std::size_t right = 0;
      while (std::ranges::find(verdict.differing, static_cast<Rank>(right)) !=
             verdict.differing.end()) {
        ++right;
      }
      for (const Rank at : verdict.differing) {
        out.wrong.push_back({ranks[static_cast<std::size_t>(at)], b, ranks[right]});
      }
    }
  }
  std::ranges::sort(out.wrong, {}, [](const auto& w) { return std::pair(w.rank, w.block); });
  return out;
}

Result<std::vector<WrongReplica>> heal_replicas(comm::Communicator& world,
                                                std::span<const int> part_of, StateBlocks& mine,
                                                std::uint64_t look) {
  STORMO_ASSIGN_OR_RETURN(const AllHashes all, gather(world, part_of, mine, look));
  const WrongBlocks found = find_wrong_blocks(all.blocks, all.columns, part_of);
  if (found.undecided) return no_majority(world, part_of, mine, *found.undecided);
  if (found.wrong.empty()) return find_misread(all, part_of);
  for (const WrongBlocks::Block& wrong : found.wrong) {
    STORMO_RETURN_IF_ERROR(send_right_bytes(world, mine, wrong));
  }
  STORMO_RETURN_IF_ERROR(check_healed(world, mine, all, found.wrong));
  std::vector<WrongReplica> out;
  for (auto at = found.wrong.begin(); at != found.wrong.end();) {
    const auto next =
        std::find_if(at, found.wrong.end(), [&](const auto& w) { return w.rank != at->rank; });
    STORMO_ASSIGN_OR_RETURN(WrongReplica::Held held, tell_held(world, mine, *at));
    held.places = next - at;
    out.push_back({at->rank, held_text(at->rank, held), std::move(held)});
    at = next;
  }
  return out;
}

}  // namespace stormo::train
