#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/state/state_blocks.h>

namespace stormo::train {

/// What ranks find when they compare the hashes of their blocks.
struct WrongBlocks {
  struct Block {
    Rank rank = 0;          ///< holds other bits than most of those that hold the same part
    std::size_t block = 0;  ///< of this one
    Rank right = 0;         ///< the first that has the bits of the majority
    bool operator==(const Block&) const = default;
  };
  std::vector<Block> wrong{};  ///< by rank, then by block
  /// A block of which there is no majority, and the first rank that has it.
  std::optional<Block> undecided{};
};

/// `hashes`: `blocks` of each rank, by rank. `part_of`: by rank, which part of a state it holds;
/// those with equal numbers hold the same.
WrongBlocks find_wrong_blocks(std::span<const std::int64_t> hashes, std::size_t blocks,
                              std::span<const int> part_of);

/// A rank that held wrong bits, or read them.
struct WrongReplica {
  Rank rank = -1;       ///< -1: one of several, and nobody knows which
  std::string found{};  ///< "rank 2 (host n17) held other bits than ... in 'fc.bias', elements ..."
  /// What it held; nothing: what ranks hold is equal, and something else was wrong.
  struct Held {
    std::string host;
    StateBlocks::Place first;  ///< the first place
    std::int64_t places = 1;
    Rank right = 0;  ///< whose bits it has got
  };
  std::optional<Held> held{};
};

/// A collective, for ranks that have found that their hashes `look` of a part of the state are not
/// all equal. Reads all blocks again and compares them: those that differ from the majority's get
/// its bytes. `part_of` as above, equal on all ranks. Returns the same on every rank, at least one.
/// kMismatch on every rank where there is no majority, or where a block does not keep what was
/// written; `mine` may then be as it was. Costs a pass over the state, and 8 bytes for each block
/// and rank.
Result<std::vector<WrongReplica>> heal_replicas(comm::Communicator& world,
                                                std::span<const int> part_of, StateBlocks& mine,
                                                std::uint64_t look);

}  // namespace stormo::train
