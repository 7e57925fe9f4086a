#include <stormo/train/store/host_shared_parameters.h>

#include <algorithm>
#include <bit>
#include <utility>

#include <stormo/base/units.h>
#include <stormo/tensor/allocator.h>
#include <stormo/tensor/dtype.h>

namespace stormo::train {
namespace {

constexpr std::int64_t kAlignment = 64;  // bytes, of parameters and of slices
constexpr std::uint64_t kNoGradient = ~std::uint64_t{0};

std::int64_t aligned(std::int64_t elements, torch::ScalarType type) {
  const auto step = kAlignment / static_cast<std::int64_t>(torch::elementSize(type));
  return (elements + step - 1) / step * step;
}

/// In the Arena of `holder`, a local rank; how full that of another rank is, is not known here.
Status no_room(comm::Communicator& world, int holder, std::int64_t bytes, const std::string& what) {
  std::string message = "no room in the Arena of local rank " + std::to_string(holder) + " for " +
                        format_bytes(static_cast<std::uint64_t>(bytes)) + " of " + what;
  if (holder == world.local_rank()) {
    const transport::Arena::Stats stats = world.arena().stats();
    message += ": " + format_bytes(stats.in_use_bytes) + " of " +
               format_bytes(stats.capacity_bytes) + " are in use";
  }
  return Status(Code::kExhausted,
                message +
                    "; use a smaller batch or model, more hosts, or strategy \"fsdp\" with "
                    "parameters = \"sharded\"");
}

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
    : world_(world),
      host_(host),
      parameters_(std::move(parameters)),
      copies_(parameters_.size()),
      sources_(parameters_.size()) {
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
    block->count += aligned(p.tensor.numel(), type);
  }
  share_values();
  divide();
  exchange_postings();
}

HostSharedParameters::~HostSharedParameters() {
  for (NamedParameter& p : parameters_) p.tensor.set_data(p.tensor.detach().clone());
  const bool all_done = host_.barrier().ok();
  for (std::byte* room : rooms_) world_.arena().deallocate(room);
  // after a failure others may still look at what lies there
  if (!all_done) return;
  world_.arena().deallocate(postings_[static_cast<std::size_t>(world_.local_rank())]);
  if (world_.local_rank() != 0) return;
  for (const Block& b : blocks_) world_.arena().deallocate(world_.peer_address(0, b.offset));
}

// The host's first rank moves its values into its Arena, and every rank's tensors look there.
void HostSharedParameters::share_values() {
  for (Block& block : blocks_) {
    const std::int64_t bytes =
        block.count * static_cast<std::int64_t>(torch::elementSize(block.type));
    if (world_.local_rank() == 0) {
      void* memory = world_.arena().allocate(static_cast<std::size_t>(bytes));
      block.offset = memory == nullptr ? kNoGradient : world_.arena().offset_of(memory);
    }
    auto offset = std::bit_cast<std::int64_t>(block.offset);
    throw_if_error(host_.broadcast(std::span(&offset, 1), 0));
    block.offset = std::bit_cast<std::uint64_t>(offset);
    if (block.offset == kNoGradient) throw Error(no_room(world_, 0, bytes, "parameters"));
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
    const std::int64_t size = p.tensor.numel();
    const auto cut = [&](std::int64_t r) {
      return std::min(size, aligned(size * r / ranks, p.tensor.scalar_type()));
    };
    owned_.push_back({.begin = cut(rank), .end = cut(rank + 1)});
  }
}

void HostSharedParameters::exchange_postings() {
  transport::Arena& arena = world_.arena();
  const auto room = [&](std::size_t bytes, const std::string& what) {
    void* memory = arena.allocate(bytes);
    if (memory == nullptr) {
      throw Error(no_room(world_, world_.local_rank(), static_cast<std::int64_t>(bytes), what));
    }
    return static_cast<std::byte*>(memory);
  };
  for (const NamedParameter& p : parameters_) {
    const std::size_t bytes = p.tensor.nbytes();
    rooms_.push_back(bytes < tensor::kArenaThresholdBytes
                         ? room(bytes, "the gradient of '" + p.name + "'")
                         : nullptr);
  }
  std::byte* mine = room((1 + parameters_.size()) * sizeof(std::uint64_t), "postings");
  auto offset = static_cast<std::int64_t>(arena.offset_of(mine));
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(world_.local_size()));
  throw_if_error(host_.all_gather(comm::Buffer{&offset, 1, DType::kInt64}, offsets));
  for (int r = 0; r < world_.local_size(); ++r) {
    const auto at = static_cast<std::uint64_t>(offsets[static_cast<std::size_t>(r)]);
    postings_.push_back(reinterpret_cast<std::uint64_t*>(world_.peer_address(r, at)));
  }
}

Result<std::uint64_t> HostSharedParameters::show(std::size_t index) {
  const torch::Tensor& gradient = parameters_[index].tensor.grad();
  transport::Arena& arena = world_.arena();
  if (!gradient.defined()) return kNoGradient;
  const bool plain = gradient.layout() == torch::kStrided && gradient.is_contiguous();
  if (plain && arena.contains(gradient.const_data_ptr())) {
    return arena.offset_of(gradient.const_data_ptr());
  }
  torch::Tensor& copy = copies_[index];
  const torch::Tensor& like = parameters_[index].tensor;
  copy = rooms_[index] != nullptr
             ? torch::from_blob(rooms_[index], like.sizes(), like.options().requires_grad(false))
             : torch::empty_like(like, torch::MemoryFormat::Contiguous);
  if (!arena.contains(copy.const_data_ptr())) {
    return no_room(world_, world_.local_rank(), static_cast<std::int64_t>(like.nbytes()),
                   "the gradient of '" + parameters_[index].name + "'");
  }
  copy.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
  return arena.offset_of(copy.const_data_ptr());
}

Status HostSharedParameters::publish(double weight) {
  const torch::NoGradGuard no_grad;
  std::uint64_t* posting = postings_[static_cast<std::size_t>(world_.local_rank())];
  posting[0] = std::bit_cast<std::uint64_t>(weight);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    STORMO_ASSIGN_OR_RETURN(posting[1 + i], show(i));
  }
  STORMO_RETURN_IF_ERROR(host_.barrier());
  collect();
  return {};
}

void HostSharedParameters::collect() {
  double total = 0;
  for (const std::uint64_t* posting : postings_) total += std::bit_cast<double>(posting[0]);
  gradients_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto skipped =
        static_cast<std::size_t>(owned_[i].begin) * parameters_[i].tensor.element_size();
    std::vector<optim::GradientTerm>& sources = sources_[i];
    sources.clear();
    for (std::size_t r = 0; r < postings_.size(); ++r) {
      const std::uint64_t offset = postings_[r][1 + i];
      const double weight = std::bit_cast<double>(postings_[r][0]);
      if (offset == kNoGradient || weight == 0) continue;
      sources.push_back({.data = world_.peer_address(static_cast<int>(r), offset + skipped),
                         .scale = weight / total});
    }
    if (sources.empty()) continue;
    gradients_.push_back({.parameter = i,
                          .sources = sources,
                          .dtype = *tensor::dtype_of(parameters_[i].tensor.scalar_type())});
  }
}

Status HostSharedParameters::release() {
  STORMO_RETURN_IF_ERROR(host_.barrier());
  for (NamedParameter& p : parameters_) {
    p.tensor.unsafeGetTensorImpl()->bump_version();  // peers wrote behind autograd's back
  }
  for (torch::Tensor& copy : copies_) copy.reset();
  return {};
}

}  // namespace stormo::train
