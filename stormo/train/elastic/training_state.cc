#include <stormo/train/elastic/training_state.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <stormo/base/rng.h>

namespace stormo::train {
namespace {

/// Of the gradient this part is hashed in each step, a block at least, 4 MiB at most: they take 0.4
/// ms.
constexpr std::size_t kWindows = 16;
constexpr std::size_t kLargestWindow = (4 << 20) / StateBlocks::kBytes;

std::uint64_t not_zero(std::uint64_t hash) { return hash == 0 ? 1 : hash; }

std::vector<TensorPiece> pieces_of(FusedOptimizer& optimizer) {
  const FusedOptimizer::Values values = optimizer.values();
  std::vector<TensorPiece> pieces;
  const auto add = [&](std::string name, const torch::Tensor& tensor) {
    TensorPiece& piece = pieces.emplace_back();
    piece.name = std::move(name);
    piece.values = tensor;
  };
  for (std::size_t i = 0; i < values.weights.size(); ++i) {
    const std::string& name = optimizer.parameters()[i].name;
    add(name, values.weights[i]);
    for (std::size_t s = 0; s < values.slots.size(); ++s) {
      add("optimizer." + std::to_string(s) + "." + name, values.slots[s][i]);
    }
  }
  return pieces;
}

}  // namespace

// A store of replicas has no other kind for rules that update ranges.
TrainingState::TrainingState(Optimizer& optimizer)
    : optimizer_(dynamic_cast<FusedOptimizer&>(optimizer)), blocks_(pieces_of(optimizer_)) {
  const bool whole = optim::needs_norms(optimizer_.options().kind);
  // tensors of a parameter have as many elements, of one type: so as many blocks
  const FusedOptimizer::Values values = optimizer_.values();
  tensors_ = values.slots.size() + 1;
  std::size_t first = 0;
  for (const torch::Tensor& weights : values.weights) {
    const std::size_t blocks = StateBlocks::count(weights);
    for (std::size_t b = 0; b < blocks; ++b) {
      if (b == 0 || !whole) slices_.emplace_back();
      for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
        slices_.back().push_back(first + tensor * blocks + b);
      }
    }
    first += blocks * tensors_;
  }
}

std::size_t TrainingState::count_slices(const std::vector<NamedParameter>& parameters,
                                        const OptimizerOptions& options) {
  if (optim::needs_norms(options.kind)) return parameters.size();
  std::size_t slices = 0;
  for (const NamedParameter& p : parameters) {
    const auto bytes =
        std::max<std::int64_t>(p.tensor.element_size(), sizeof(float));  // of masters
    const std::int64_t most = StateBlocks::kBytes / bytes;
    slices += static_cast<std::size_t>((p.tensor.numel() + most - 1) / most);
  }
  return slices;
}

std::size_t TrainingState::bytes(std::size_t slice) const {
  std::size_t bytes = 0;
  for (const std::size_t block : slices_[slice]) bytes += blocks_.bytes(block);
  return bytes;
}

void TrainingState::read(std::size_t slice, std::byte* to) const {
  for (const std::size_t block : slices_[slice]) {
    blocks_.read(block, to);
    to += blocks_.bytes(block);
  }
}

void TrainingState::write(std::size_t slice, const std::byte* from) {
  for (const std::size_t block : slices_[slice]) {
    blocks_.write(block, from);
    from += blocks_.bytes(block);
  }
}

std::uint64_t TrainingState::hash() const {
  const std::vector<std::int64_t> steps = optimizer_.steps();
  const auto bytes = std::as_bytes(std::span(steps));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return not_zero(fnv1a(text, blocks_.hash(0, blocks_.size())));
}

std::uint64_t hash_of_gradients(const Optimizer& optimizer, std::uint64_t step) {
  std::vector<TensorPiece> pieces;
  for (const NamedParameter& p : optimizer.parameters()) {
    if (!p.tensor.grad().defined() || p.sparse) continue;
    TensorPiece piece;
    piece.name = p.name;
    piece.values = p.tensor.grad();
    pieces.push_back(std::move(piece));
  }
  const StateBlocks blocks(std::move(pieces));
  const std::size_t size = std::clamp<std::size_t>(blocks.size() / kWindows, 1, kLargestWindow);
  const std::size_t windows = std::max<std::size_t>(1, (blocks.size() + size - 1) / size);
  const std::size_t first = step % windows * size;
  return not_zero(blocks.hash(first, std::min(blocks.size(), first + size)));
}

}  // namespace stormo::train
