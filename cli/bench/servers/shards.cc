#include <cli/bench/servers/shards.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include <stormo/base/units.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/transport/memory/wait.h>

namespace stormo::cli {
namespace {

using server::SharedShard;

constexpr std::int64_t kNoMemory = -1;
/// Where a float32 stays when 1 is added.
constexpr std::int64_t kMostCounted = 1 << 24;

}  // namespace

Result<bool> counts_all_pushes(comm::Communicator& world, std::uint64_t pushes,
                               std::span<server::Shard* const> shards) {
  std::int64_t all = static_cast<std::int64_t>(pushes);
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&all, 1), comm::ReduceOp::kSum));
  const auto expected = static_cast<float>(std::min(all, kMostCounted));
  double wrong = 0;
  for (server::Shard* shard : shards) {
    STORMO_ASSIGN_OR_RETURN(const server::Shard::View view, shard->look());
    const std::span key(reinterpret_cast<const float*>(view.pieces[0]),
                        static_cast<std::size_t>(shard->pieces()[0].elements()));
    if (std::ranges::count(key, expected) != std::ssize(key)) wrong = 1;
  }
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&wrong, 1), comm::ReduceOp::kMax));
  return wrong == 0;
}

Result<std::unique_ptr<BenchShards>> BenchShards::create(comm::Communicator& world, int servers,
                                                         std::uint64_t bytes) {
  std::unique_ptr<BenchShards> out(new BenchShards(world, bytes));
  STORMO_RETURN_IF_ERROR(out->make_shards(servers));
  STORMO_RETURN_IF_ERROR(out->make_buffers(servers));
  return out;
}

BenchShards::~BenchShards() {
  if (!world_.barrier().ok()) return;  // others may still look at what lies there
  for (std::byte* memory : memory_) world_.arena().deallocate(memory);
  for (std::byte* memory : received_) world_.arena().deallocate(memory);
}

Status BenchShards::make_shards(int servers) {
  STORMO_ASSIGN_OR_RETURN(const auto policy, protocol::make_policy({}, world_.size()));
  const server::ShardOptions options{
      .workers = world_.size(), .optimizer = {.lr = 1}, .policy = policy};
  const server::ShardPiece key{.end = static_cast<std::int64_t>(bytes_ / sizeof(float))};
  const auto wait = transport::wait_policy(world_.size(), transport::usable_cores());
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(servers), kNoMemory);
  for (std::size_t s = 0; s < offsets.size(); ++s) {
    shards_.push_back(std::make_unique<SharedShard>(
        std::vector{key}, options, world_.rank(),
        server::ShardWait{.policy = wait, .status = [this] { return world_.status(); }}));
    if (world_.rank() != 0) continue;
    void* memory = world_.arena().allocate(shards_[s]->bytes());
    if (memory == nullptr) continue;
    memory_.push_back(static_cast<std::byte*>(memory));
    shards_[s]->create(memory_.back());
    offsets[s] = static_cast<std::int64_t>(world_.arena().offset_of(memory));
  }
  STORMO_RETURN_IF_ERROR(world_.broadcast(offsets, 0));
  if (std::ranges::count(offsets, kNoMemory) > 0)
    return Status(Code::kExhausted, "no room in the Arena for " + std::to_string(servers) +
                                        " servers of " + format_bytes(bytes_));
  if (world_.rank() == 0) return {};
  for (std::size_t s = 0; s < offsets.size(); ++s)
    shards_[s]->attach(world_.peer_address(0, static_cast<std::uint64_t>(offsets[s])));
  return {};
}

Status BenchShards::make_buffers(int servers) {
  gradient_.assign(bytes_ / sizeof(float), -1.0F);
  pulled_.assign(gradient_.size(), 0.0F);
  for (int s = 0; s < servers; ++s) {
    void* memory = world_.arena().allocate(bytes_);
    if (memory == nullptr)
      return Status(Code::kExhausted, "no room in the Arena for " + format_bytes(bytes_));
    std::memset(memory, 0, bytes_);
    received_.push_back(static_cast<std::byte*>(memory));
  }
  return world_.barrier();
}

Status BenchShards::pull_and_push(bool copies) {
  const int worker = world_.rank();
  for (const auto& shard : shards_) {
    STORMO_ASSIGN_OR_RETURN(const SharedShard::View view, shard->read());
    if (copies) std::memcpy(pulled_.data(), view.pieces[0], bytes_);
  }
  const server::PushedPiece gradient{.array = gradient_.data()};
  const std::size_t count = shards_.size();
  for (std::size_t n = 0; n < count; ++n) {
    SharedShard& shard = *shards_[(n + static_cast<std::size_t>(worker)) % count];
    STORMO_RETURN_IF_ERROR(
        shard.push({.pieces = {&gradient, 1}, .lr = 1, .sequence = sequence_}).status());
  }
  ++sequence_;
  return {};
}

void BenchShards::copy() {
  for (std::byte* key : received_) std::memcpy(pulled_.data(), key, bytes_);
  for (std::byte* key : received_) std::memcpy(key, gradient_.data(), bytes_);
}

Result<bool> BenchShards::counted_all() {
  return counts_all_pushes(world_, sequence_, pointers(shards_));
}

}  // namespace stormo::cli
