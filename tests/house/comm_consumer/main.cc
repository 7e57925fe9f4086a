// Adds up what ranks hold, and exits 0 when every rank gets the sum: two threads of this process,
// then the ranks of the job that has started it.
#include <array>
#include <cstdio>
#include <span>
#include <thread>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/launch/environment.h>

namespace {

using stormo::Status;
using stormo::comm::Communicator;

Status add_up(Communicator& ranks, std::vector<float>& data) {
  data.assign(1000, static_cast<float>(ranks.rank() + 1));
  return ranks.all_reduce(data, stormo::comm::ReduceOp::kSum);
}

Status among_threads() {
  STORMO_ASSIGN_OR_RETURN(const auto group, stormo::comm::make_inproc_group(2));
  std::array<std::vector<float>, 2> data;
  std::array<Status, 2> outcome;
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] { outcome[r] = add_up(*group[r], data[r]); });
  for (std::thread& rank : ranks) rank.join();
  for (const Status& status : outcome) STORMO_RETURN_IF_ERROR(status);
  const bool right = data[0] == std::vector<float>(1000, 3) && data[0] == data[1];
  return right ? Status() : stormo::invalid_argument("a wrong sum");
}

Status among_ranks() {
  namespace launch = stormo::launch;
  STORMO_ASSIGN_OR_RETURN(const auto place,
                          launch::read_environment(launch::process_environment()));
  STORMO_ASSIGN_OR_RETURN(const auto world, stormo::comm::join(place));
  std::vector<float> data;
  STORMO_RETURN_IF_ERROR(add_up(*world, data));
  const int n = world->size();
  std::printf("rank %d of %d: sum %g\n", world->rank(), n, static_cast<double>(data[0]));
  STORMO_RETURN_IF_ERROR(world->finalize(stormo::Deadline::never()));
  const bool right = data == std::vector<float>(1000, static_cast<float>(n * (n + 1) / 2));
  return right ? Status() : stormo::invalid_argument("a wrong sum");
}

}  // namespace

int main() {
  for (const auto& run : {among_threads, among_ranks}) {
    const Status status = run();
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
}
