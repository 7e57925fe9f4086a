#include <stormo/train/state/state_blocks.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

/// Elements in the order of memory, where they have no gaps: equal on ranks with equal strides.
torch::Tensor in_one_dimension(const torch::Tensor& values) {
  const torch::Tensor t = values.detach();
  if (!t.is_non_overlapping_and_dense()) return {};
  return t.as_strided({t.numel()}, {1}, t.storage_offset());
}

}  // namespace

std::uint64_t state_hash(TensorMap model, const TensorMap& optimizer) {
  model.insert(optimizer.begin(), optimizer.end());
  return std::stoull(weights_hash(model), nullptr, 16);
}

StateBlocks::StateBlocks(std::vector<TensorPiece> pieces) : pieces_(std::move(pieces)) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const torch::Tensor& values = pieces_[i].values;
    flat_.push_back(in_one_dimension(values));
    const std::int64_t most = kBytes / static_cast<std::int64_t>(values.element_size());
    for (std::int64_t begin = 0; begin < values.numel(); begin += most) {
      blocks_.push_back({i, begin, std::min(begin + most, values.numel())});
    }
  }
}

std::size_t StateBlocks::count(const torch::Tensor& tensor) {
  const std::int64_t most = kBytes / static_cast<std::int64_t>(tensor.element_size());
  return static_cast<std::size_t>((tensor.numel() + most - 1) / most);
}

torch::Tensor StateBlocks::values(const Block& block) const {
  const torch::Tensor& flat = flat_[block.piece];
  return (flat.defined() ? flat : pieces_[block.piece].values.detach().flatten())
      .slice(0, block.begin, block.end);
}

std::uint64_t StateBlocks::hash(std::size_t first, std::size_t last) const {
  checkpoint::Hasher hasher;
  for (std::size_t i = first; i < last; ++i) {
    const torch::Tensor here = values(blocks_[i]).to(torch::kCPU);
    hasher.add(here.const_data_ptr(), here.nbytes());
  }
  return hasher.digest();
}

std::vector<std::uint64_t> StateBlocks::hashes() const {
  std::vector<std::uint64_t> out;
  for (std::size_t i = 0; i < blocks_.size(); ++i) out.push_back(hash(i, i + 1));
  return out;
}

std::string StateBlocks::Place::text() const {
  return fmt::format("'{}', elements {} to {}", tensor, first, last);
}

StateBlocks::Place StateBlocks::place(std::size_t block) const {
  const Block& b = blocks_[block];
  const TensorPiece& piece = pieces_[b.piece];
  return {piece.name, piece.begin + b.begin, piece.begin + b.end - 1};
}

std::size_t StateBlocks::bytes(std::size_t block) const {
  const Block& b = blocks_[block];
  return static_cast<std::size_t>(b.end - b.begin) * pieces_[b.piece].values.element_size();
}

void StateBlocks::read(std::size_t block, void* to) const {
  const torch::Tensor here = values(blocks_[block]).to(torch::kCPU);
  std::memcpy(to, here.const_data_ptr(), here.nbytes());
}

void StateBlocks::write(std::size_t block, const void* from) {
  const torch::NoGradGuard no_grad;
  const Block& b = blocks_[block];
  const torch::Tensor target = pieces_[b.piece].values.detach();
  torch::Tensor right = torch::empty({b.end - b.begin}, target.scalar_type());
  std::memcpy(right.mutable_data_ptr(), from, right.nbytes());
  if (flat_[b.piece].defined()) {
    values(b).copy_(right);
  } else {
    torch::Tensor all = target.flatten();  // a copy
    all.slice(0, b.begin, b.end).copy_(right);
    target.copy_(all.view(target.sizes()));
  }
}

}  // namespace stormo::train
