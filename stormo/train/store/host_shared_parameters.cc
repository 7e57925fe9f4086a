#include <stormo/train/store/host_shared_parameters.h>

#include <algorithm>
#include <bit>
#include <utility>

#include <stormo/tensor/dtype.h>
#include <stormo/train/store/host_parts.h>

namespace stormo::train {
namespace {

constexpr std::uint64_t kNoRoom = ~std::uint64_t{0};

}  // namespace

bool HostSharedParameters::possible(comm::Communicator& world) {
  return world.peer_address(world.local_rank(), 0) != nullptr;
}

bool HostSharedParameters::can_hold(const NamedParameter& parameter) {
  const torch::Tensor& t = parameter.tensor;
  return !parameter.sparse && t.is_cpu() && t.layout() == torch::kStrided && t.is_contiguous() &&
         (t.scalar_type() == torch::kFloat32 || t.scalar_type() == torch::kFloat64);
}

HostSharedParameters::HostSharedParameters(comm::Communicator& world, comm::Communicator& host,
                                           std::vector<NamedParameter> parameters)
    : world_(world), host_(host), parameters_(std::move(parameters)), sources_(parameters_.size()) {
  if (!possible(world)) {
    throw Error(invalid_argument(
        "host-shared parameters need ranks that share memory, which this engine's do not; use "
        "parameters = \"replicated\""));
  }
  for (const NamedParameter& p : parameters_) {
    const torch::ScalarType type = p.tensor.scalar_type();
    if (!can_hold(p)) {
      throw Error(
          invalid_argument("parameter '" + p.name +
                           "' cannot be shared: only contiguous float32 and float64 "
                           "tensors in host memory with dense gradients can; use parameters "
                           "= \"replicated\""));
    }
    auto block = std::find_if(blocks_.begin(), blocks_.end(),
                              [type](const Block& b) { return b.type == type; });
    if (block == blocks_.end()) block = blocks_.insert(block, {.type = type});
    block_of_.push_back(static_cast<std::size_t>(block - blocks_.begin()));
    position_.push_back(block->count);
    block->count += aligned_elements(p.tensor.numel(), type);
  }
  share_values();
  divide();
  posted_.emplace(world_, host_, parameters_);
}

HostSharedParameters::~HostSharedParameters() {
  for (NamedParameter& p : parameters_) p.tensor.set_data(p.tensor.detach().clone());
  const bool all_done = host_.barrier().ok();
  // after a failure others may still look at what lies there
  if (!all_done || world_.local_rank() != 0) return;
  for (const Block& b : blocks_) world_.arena().deallocate(world_.peer_address(0, b.offset));
}

// The host's first rank moves its values into its Arena, and every rank's tensors look there.
void HostSharedParameters::share_values() {
  for (Block& block : blocks_) {
    const std::int64_t bytes =
        block.count * static_cast<std::int64_t>(torch::elementSize(block.type));
    if (world_.local_rank() == 0) {
      void* memory = world_.arena().allocate(static_cast<std::size_t>(bytes));
      block.offset = memory == nullptr ? kNoRoom : world_.arena().offset_of(memory);
    }
    auto offset = std::bit_cast<std::int64_t>(block.offset);
    throw_if_error(host_.broadcast(std::span(&offset, 1), 0));
    block.offset = std::bit_cast<std::uint64_t>(offset);
    if (block.offset == kNoRoom) {
      throw Error(no_room_in_arena(world_, 0, bytes, "parameters"));
    }
  }
  std::vector<torch::Tensor> shared;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& p = parameters_[i].tensor;
    const Block& block = blocks_[block_of_[i]];
    std::byte* base = world_.peer_address(0, block.offset);
    const auto at = static_cast<std::size_t>(position_[i]) * torch::elementSize(block.type);
    shared.push_back(torch::from_blob(base + at, p.sizes(), p.options().requires_grad(false)));
    if (world_.local_rank() == 0) shared.back().copy_(p.detach());
  }
  throw_if_error(host_.barrier());
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.set_data(shared[i]);
}

// An equal part of every parameter, cut at cache lines: so every rank has as much of what was
// computed last, and lies in a cache, as the others.
void HostSharedParameters::divide() {
  const std::int64_t rank = world_.local_rank(), ranks = world_.local_size();
  for (const NamedParameter& p : parameters_) {
    const auto cut = [&](std::int64_t r) {
      return begin_of_part(p.tensor.numel(), r, ranks, p.tensor.scalar_type());
    };
    owned_.push_back({.begin = cut(rank), .end = cut(rank + 1)});
  }
}

Status HostSharedParameters::publish(double weight) {
  STORMO_RETURN_IF_ERROR(posted_->publish(weight));
  gradients_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto skipped =
        static_cast<std::size_t>(owned_[i].begin) * parameters_[i].tensor.element_size();
    std::vector<optim::GradientTerm>& sources = sources_[i];
    sources.clear();
    for (const optim::GradientTerm& term : posted_->terms(i)) {
      sources.push_back(
          {.data = static_cast<const std::byte*>(term.data) + skipped, .scale = term.scale});
    }
    if (sources.empty()) continue;
    gradients_.push_back({.parameter = i,
                          .sources = sources,
                          .dtype = *tensor::dtype_of(parameters_[i].tensor.scalar_type())});
  }
  return {};
}

Status HostSharedParameters::release() {
  STORMO_RETURN_IF_ERROR(host_.barrier());
  for (NamedParameter& p : parameters_) {
    p.tensor.unsafeGetTensorImpl()->bump_version();  // peers wrote behind autograd's back
  }
  posted_->release();
  return {};
}

}  // namespace stormo::train
