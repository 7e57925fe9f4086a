#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include <stormo/train/state/safetensors.h>
#include <stormo/train/state/tensor_piece.h>

namespace stormo::train {

/// A hash (XXH3-64) over names, types, shapes and bytes of a whole training state: named_state() of
/// the module and Optimizer::state(), in name order. Tensors in host memory are read where they
/// lie. Throws Error for a tensor without values.
std::uint64_t state_hash(TensorMap model, const TensorMap& optimizer);

/// The tensors of a state in their order, cut into blocks that are hashed, compared and replaced.
/// Two ranks that hold the same have the same blocks. Tensors are shared, in host memory or on a
/// device, and read when it is asked for a hash.
class StateBlocks {
 public:
  static constexpr std::int64_t kBytes = 256 << 10;  ///< of a block, at most

  /// `values` of the pieces are what counts; a piece has no box.
  explicit StateBlocks(std::vector<TensorPiece> pieces);
  /// Blocks of one tensor.
  static std::size_t count(const torch::Tensor& tensor);

  std::size_t size() const { return blocks_.size(); }
  /// XXH3-64 of the bytes of the blocks [first, last).
  std::uint64_t hash(std::size_t first, std::size_t last) const;
  /// By block.
  std::vector<std::uint64_t> hashes() const;
  /// Elements of the whole tensor, which this rank may have in parts.
  struct Place {
    std::string tensor;
    std::int64_t first = 0, last = 0;
    std::string text() const;  ///< "'fc.weight', elements 0 to 65535"
  };
  Place place(std::size_t block) const;

  std::size_t bytes(std::size_t block) const;
  /// Copies the block's bytes to or from host memory.
  void read(std::size_t block, void* to) const;
  void write(std::size_t block, const void* from);

 private:
  struct Block {
    std::size_t piece = 0;
    std::int64_t begin = 0, end = 0;  // elements of the piece's values
  };
  torch::Tensor values(const Block& block) const;

  std::vector<TensorPiece> pieces_;
  std::vector<torch::Tensor> flat_;  // by piece: its memory in one dimension; undefined: has gaps
  std::vector<Block> blocks_;
};

}  // namespace stormo::train
