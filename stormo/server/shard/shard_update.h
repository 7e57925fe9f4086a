#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <stormo/base/status.h>
#include <stormo/optim/update.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/server/shard.h>
#include <stormo/server/shard/change_stamps.h>

namespace stormo::server {

/// Most terms of a gradient: the pending ones, and the one that is pushed.
inline constexpr std::size_t kMaxTerms = 2;

/// A gradient for an update of one piece: the sum of its terms, at most kMaxTerms. `pulled` are the
/// weights that it was computed from; without compensation not used.
struct PieceGradient {
  std::span<const optim::GradientTerm> terms;
  protocol::DelayCompensation delay = {};
  const std::byte* pulled = nullptr;
};

/// Called after each block of memory.
using Progress = std::function<void()>;

/// to = weights, slots and mean square of `from` after one update, in these ranges of the piece,
/// and as it was elsewhere; `from` stays as it is. Without terms `to` is a copy. Traffic per weight
/// in float32: 12 bytes with SGD, and 8 for each slot. A rule that needs norms makes two passes,
/// and takes the piece for a whole parameter, see check_norms().
void update_piece(const optim::Options& options, optim::UpdateStep step, const ShardPiece& piece,
                  const PieceGradient& gradient, std::span<const ChangedRange> ranges,
                  const PieceArrays& from, PieceArrays& to, const Progress& progress);

/// Elastic averaging: with d = alpha (own - from), to = from + d and moved = own - d. `own` and
/// `from` stay as they are. Traffic per weight in float32: 16 bytes.
void exchange_piece(const ShardPiece& piece, double alpha, const std::byte* own,
                    const std::byte* from, std::byte* to, std::byte* moved,
                    const Progress& progress);

/// kInvalidArgument for rows that do not fit their piece.
Status check_rows(std::span<const ShardPiece> pieces, const PushedGradient& gradient);

/// Adds scale * rows to an array of the piece.
void add_rows(const ShardPiece& piece, const GradientRows& rows, double scale, std::byte* to,
              const Progress& progress);

/// to = 0 in these ranges of the piece.
void clear_piece(const ShardPiece& piece, std::span<const ChangedRange> ranges, std::byte* to,
                 const Progress& progress);

/// to = the sum of 1 to kMaxTerms terms.
void add_piece(const ShardPiece& piece, std::span<const optim::GradientTerm> terms, std::byte* to,
               const Progress& progress);

}  // namespace stormo::server
