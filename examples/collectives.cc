// Collectives alone, without libtorch: groups by colour, as MPI_Comm_split makes them, and a
// reduction of one's own.
//
//   stormo run -n 4 -- build/release/bin/example_collectives
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/comm/split.h>
#include <stormo/launch/environment.h>

namespace {

/// Keeps the number of the larger magnitude; of two with the same one the positive number, so that
/// the order of ranks does not matter.
void keep_larger(const void* term, void* accumulated, std::int64_t n) {
  const auto* x = static_cast<const float*>(term);
  auto* acc = static_cast<float*>(accumulated);
  for (std::int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(x[i]), b = std::fabs(acc[i]);
    if (a > b || (a == b && x[i] > acc[i])) acc[i] = x[i];
  }
}

}  // namespace

int main() {
  using namespace stormo;
  auto place = launch::read_environment(launch::process_environment()).take_or_throw();
  auto world = comm::join(place).take_or_throw();
  const int rank = world->rank(), size = world->size();
  bool right = true;

  // Ranks compare the name; equal names must mean equal functions.
  const comm::Reduction largest(std::make_shared<const comm::UserReduction>(
      comm::UserReduction{"larger magnitude", keep_larger}));
  std::vector<float> values = {static_cast<float>(rank), static_cast<float>(-rank), 0.5f};
  throw_if_error(world->all_reduce(values, largest));
  const auto last = static_cast<float>(size - 1);
  right = right && values == std::vector<float>{last, size > 1 ? -last : 0.0f, 0.5f};

  // Even and odd ranks; rank 0 stays out, as with MPI_UNDEFINED.
  const int color = rank == 0 ? -1 : rank % 2;
  auto group = comm::split(*world, color, /*key=*/rank, Deadline::never()).take_or_throw();
  if (group != nullptr) {
    std::vector<std::int64_t> sum = {rank}, wanted = {0};
    throw_if_error(group->all_reduce(sum, comm::ReduceOp::kSum));
    for (int r = 1; r < size; ++r) wanted[0] += r % 2 == color ? r : 0;
    right = right && sum == wanted;
    std::printf("rank %d is rank %d of %d of color %d, sum %lld\n", rank, group->rank(),
                group->size(), color, static_cast<long long>(sum[0]));
    throw_if_error(group->finalize(Deadline::never()));
  }
  group.reset();  // before the world
  throw_if_error(world->finalize(Deadline::never()));
  return right ? 0 : 1;
}
