#include <stormo/train/evaluation/segment_parts.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace stormo::train {
namespace {

constexpr int kNone = -1;
/// What a rank keeps for batches that it evaluates at once.
constexpr std::int64_t kKeptBytes = 64 << 20;
constexpr std::int64_t kMostBatches = 1024;  // a tensor is more than its bytes

/// The segment that has a tensor of this name; kNone for one of the chain itself.
int segment_of(const model::Chain& chain, const std::string& tensor) {
  const auto& names = chain.segment_names();
  const auto found = std::ranges::find(names, tensor.substr(0, tensor.find('.')));
  return found == names.end() ? kNone : static_cast<int>(found - names.begin());
}

}  // namespace

// Names of a segment's tensors follow each other.
VisitTensors SegmentParts::tensors() const {
  return [this](const auto& visit) {
    int at = kNone;
    GatheredParameters readable;
    for (const auto& [name, tensor] : named_state(chain_)) {
      const int segment = segment_of(chain_, name);
      if (segment != std::exchange(at, segment)) {
        readable.reset();
        if (segment != kNone) readable = store_.gather_segments({segment, segment});
      }
      visit(name, tensor);
    }
  };
}

std::size_t SegmentParts::forward(std::vector<torch::Tensor>& inputs) const {
  std::size_t largest = 0;
  for (std::size_t s = 0; s < chain_.segments().size(); ++s) {
    const auto number = static_cast<int>(s);
    const GatheredParameters readable = store_.gather_segments({number, number});
    for (torch::Tensor& x : inputs) {
      x = chain_.segments()[s]->forward(std::move(x));
      largest = std::max(largest, static_cast<std::size_t>(x.nbytes()));
    }
  }
  return largest;
}

std::int64_t SegmentParts::batches_at_once(std::int64_t samples) const {
  if (!knows_bytes()) return 1;
  return std::clamp<std::int64_t>(kKeptBytes / (bytes_per_sample_ * samples), 1, kMostBatches);
}

Status SegmentParts::agree_on_bytes(comm::Communicator& world, std::size_t bytes,
                                    std::int64_t samples) {
  std::int64_t most = samples > 0 ? static_cast<std::int64_t>(bytes) / samples + 1 : 1;
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span<std::int64_t>(&most, 1), comm::ReduceOp::kMax));
  bytes_per_sample_ = most;
  return {};
}

}  // namespace stormo::train
