#include <stormo/train/replica_check.h>

#include <string>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/train/checkpoint.h>

namespace stormo::train {

Status check_replicas(comm::Communicator& world, const torch::nn::Module& module) {
  auto mine = static_cast<std::int64_t>(fnv1a(weights_hash(named_state(module))));
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(
      world.all_gather(comm::Buffer{&mine, 1, DType::kInt64}, comm::buffer_of(std::span(all))));
  std::string differing;
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0]) differing += (differing.empty() ? "" : ", ") + std::to_string(r);
  }
  if (differing.empty()) return {};
  return Status(Code::kMismatch,
                "replicas are no longer equal: the weights of rank(s) " + differing +
                    " differ from rank 0; something outside the gradients changed them (random "
                    "numbers, unequal threads or libraries)");
}

}  // namespace stormo::train
