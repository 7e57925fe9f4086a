#pragma once

#include <cstddef>
#include <span>

#include <stormo/base/status.h>
#include <stormo/server/shard.h>
#include <stormo/server/shard/shard_update.h>

namespace stormo::server {

/// The gradient of a piece in rows; row_length is 0 if it has none in this form.
GradientRows rows_of(const PushedGradient& gradient, std::size_t piece);
/// The same as first element of an array; null if it has none in this form.
const void* dense_of(const PushedGradient& gradient, std::size_t piece);

/// kInvalidArgument for rows that do not fit their piece.
Status check_rows(std::span<const ShardPiece> pieces, const PushedGradient& gradient);

/// Adds scale * rows to an array of the piece.
void add_rows(const ShardPiece& piece, const GradientRows& rows, double scale, std::byte* to,
              const Progress& progress);

}  // namespace stormo::server
