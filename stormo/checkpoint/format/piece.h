#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/box.h>
#include <stormo/checkpoint/format/run_identity.h>

namespace stormo::checkpoint {

/// Elements [begin, end) of a tensor in C order, or those of a box, as one rank holds them.
struct Piece {
  std::string name;                 ///< dotted
  std::string dtype;                ///< as in safetensors files: "F32", "I64", ...
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const void* data = nullptr;           ///< the values, contiguous
  std::shared_ptr<const void> owner{};  ///< keeps `data` alive; null: the caller does
  std::optional<Box> box{};             ///< begin and end do not count then
};

/// Number of bytes of the values.
std::size_t bytes_of(const Piece& piece);

/// kInvalidArgument names a piece with an unknown dtype or a range outside of its shape.
Status check_piece(const Piece& piece);

/// Divides replicated state, none of it in boxes, evenly by bytes: returns the part that rank
/// `index` of `count` writes. The parts of all ranks cover the pieces exactly once.
std::vector<Piece> share_of(const std::vector<Piece>& pieces, int index, int count);

/// The content of a checkpoint from one rank. `pieces` differ between ranks; all other fields are
/// equal on all ranks (those of rank 0 are used).
struct Snapshot {
  std::vector<Piece> pieces;       ///< over all ranks they cover every tensor exactly once
  std::int64_t step = 0;           ///< steps done
  std::int64_t samples = 0;        ///< used over all ranks
  std::string name;                ///< of the recipe or program
  std::string recipe_json = "{}";  ///< resolved recipe
  /// Derived from the recipe's data: names of classes, vocabulary.
  std::string preprocessing_json = "{}";
  std::string state_json =
      "{}";  ///< other state needed to resume: positions in the data, random seeds
  std::string torch_version;
  RunIdentity run;  ///< which run this is; see folder.h
};

}  // namespace stormo::checkpoint
