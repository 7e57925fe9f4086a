#include <stormo/train/store/host_gradients.h>

#include <bit>
#include <utility>

#include <torch/utils.h>

#include <stormo/base/units.h>
#include <stormo/tensor/allocator.h>

namespace stormo::train {
namespace {

constexpr std::uint64_t kNoGradient = ~std::uint64_t{0};

}  // namespace

// How full the Arena of another rank is, is not known here.
Status no_room_in_arena(comm::Communicator& world, int holder, std::int64_t bytes,
                        const std::string& what) {
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

HostGradients::HostGradients(comm::Communicator& world, comm::Communicator& host,
                             std::vector<NamedParameter> parameters)
    : world_(world),
      host_(host),
      parameters_(std::move(parameters)),
      copies_(parameters_.size()),
      terms_(parameters_.size()) {
  transport::Arena& arena = world_.arena();
  const auto room = [&](std::size_t bytes, const std::string& what) {
    void* memory = arena.allocate(bytes);
    if (memory == nullptr) {
      throw Error(
          no_room_in_arena(world_, world_.local_rank(), static_cast<std::int64_t>(bytes), what));
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

HostGradients::~HostGradients() {
  for (std::byte* room : rooms_) world_.arena().deallocate(room);
  // after a failure others may still look at what lies there
  if (!world_.status().ok() || postings_.empty()) return;
  world_.arena().deallocate(postings_[static_cast<std::size_t>(world_.local_rank())]);
}

Result<std::uint64_t> HostGradients::show(std::size_t index) {
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
    return no_room_in_arena(world_, world_.local_rank(), static_cast<std::int64_t>(like.nbytes()),
                            "the gradient of '" + parameters_[index].name + "'");
  }
  copy.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
  return arena.offset_of(copy.const_data_ptr());
}

Status HostGradients::publish(double weight) {
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

void HostGradients::collect() {
  double total = 0;
  for (const std::uint64_t* posting : postings_) total += std::bit_cast<double>(posting[0]);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    std::vector<optim::GradientTerm>& terms = terms_[i];
    terms.clear();
    for (std::size_t r = 0; r < postings_.size(); ++r) {
      const std::uint64_t offset = postings_[r][1 + i];
      const double weight = std::bit_cast<double>(postings_[r][0]);
      if (offset == kNoGradient || weight == 0) continue;
      terms.push_back(
          {.data = world_.peer_address(static_cast<int>(r), offset), .scale = weight / total});
    }
  }
}

void HostGradients::release() {
  for (torch::Tensor& copy : copies_) copy.reset();
}

}  // namespace stormo::train
