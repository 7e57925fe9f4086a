// A rank that does collectives until something goes wrong, in the way its arguments say:
//   job_worker MODE [RANK]     the rank that misbehaves, default 1
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/launch/environment.h>

namespace {

using stormo::Status;
using stormo::comm::Communicator;
using stormo::comm::ReduceOp;

Status one_step(Communicator& world, std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count), 1.0f);
  return world.all_reduce(x, ReduceOp::kSum);
}

Status misbehave(Communicator& world, const std::string& mode) {
  if (mode == "exit0") std::_Exit(0);
  if (mode == "mismatch") return one_step(world, 999);
  if (mode == "large-mismatch") return one_step(world, 999999);
  if (mode == "skip") return world.barrier();
  if (mode == "throw") {
    world.fail(
        {stormo::Code::kException, "rank " + std::to_string(world.rank()) + ": no such luck"});
    return world.status();
  }
  return {};
}

/// On one host: each of a pair reads from the other's Arena what the other has written there.
Status see_each_other(Communicator& pair, const double& written, double expected) {
  if (pair.local_size() == 1) return {};
  auto offset = static_cast<std::int64_t>(pair.arena().offset_of(&written));
  std::int64_t offsets[2];
  STORMO_RETURN_IF_ERROR(
      pair.all_gather({&offset, 1, stormo::DType::kInt64}, {offsets, 2, stormo::DType::kInt64}));
  const int other = 1 - pair.local_rank();
  const auto* seen = reinterpret_cast<const double*>(
      pair.peer_address(other, static_cast<std::uint64_t>(offsets[other])));
  if (*seen == expected) return {};
  return stormo::invalid_argument("the other's Arena is not where peer_address says");
}

/// Every pair of ranks is a group; all of them sum at once.
Status sum_in_pairs(Communicator& world) {
  std::vector<std::unique_ptr<Communicator>> groups;
  std::vector<stormo::Rank> others;
  for (stormo::Rank a = 0; a < world.size(); ++a) {
    for (stormo::Rank b = a + 1; b < world.size(); ++b) {
      const stormo::Rank members[] = {a, b};
      STORMO_ASSIGN_OR_RETURN(
          auto group, world.subgroup(members, stormo::Deadline::after(std::chrono::seconds(20))));
      if (group == nullptr) continue;
      groups.push_back(std::move(group));
      others.push_back(a == world.rank() ? b : a);
    }
  }
  std::vector<std::vector<double>> x(groups.size(), std::vector<double>(5000, world.rank()));
  std::vector<stormo::comm::Work> pending;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const stormo::comm::Buffer b = x[g];
    pending.push_back(groups[g]->all_reduce_async({&b, 1}, ReduceOp::kSum));
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    STORMO_RETURN_IF_ERROR(pending[g].wait());
    const bool right = x[g] == std::vector<double>(5000, world.rank() + others[g]);
    std::puts(right ? "right sum" : "wrong sum");
  }
  auto* written = static_cast<double*>(world.arena().allocate(sizeof(double)));
  *written = world.rank();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    STORMO_RETURN_IF_ERROR(see_each_other(*groups[g], *written, others[g]));
  }
  for (auto& group : groups) {
    STORMO_RETURN_IF_ERROR(group->finalize(stormo::Deadline::never()));
  }
  return {};
}

int run(const std::string& mode, int culprit) {
  const auto place = stormo::launch::read_environment(stormo::launch::process_environment());
  if (!place.ok()) return 2;
  const std::string version = mode == "version" && place->rank == culprit ? "0.0.7" : "";
  auto joined = stormo::comm::join(*place, version);
  if (!joined.ok()) {
    std::fprintf(stderr, "%s\n", joined.status().message().c_str());
    return joined.status().code() == stormo::Code::kRefused ? 2 : 1;
  }
  Communicator& world = **joined;
  world.set_section("testing");
  if (mode == "pairs") {
    const Status outcome = sum_in_pairs(world);
    if (!outcome.ok()) std::fprintf(stderr, "%s\n", outcome.message().c_str());
    return outcome.ok() && world.finalize(stormo::Deadline::never()).ok() ? 0 : 1;
  }
  const auto start = std::chrono::steady_clock::now();
  bool announced = false;
  for (int step = 0;; ++step) {
    const bool now = step == 50 && world.rank() == culprit && mode != "forever" && mode != "good";
    const Status outcome = now ? misbehave(world, mode) : one_step(world, 1000);
    if (!outcome.ok()) {
      std::fprintf(stderr, "%s\n", outcome.message().c_str());
      return 1;
    }
    const bool noted = std::chrono::steady_clock::now() - start > std::chrono::milliseconds(600);
    if (noted && !announced) {  // by now a heartbeat has carried what this rank does
      announced = true;
      std::puts("running");
      std::fflush(stdout);
    }
    if (mode == "good" && step == 100) break;
  }
  return world.finalize(stormo::Deadline::never()).ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc > 1 ? argv[1] : "good", argc > 2 ? std::atoi(argv[2]) : 1);
}
