// A rank that does collectives until something goes wrong, in the way its arguments say:
//   job_worker MODE [RANK]     the rank that misbehaves, default 1
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
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
  return world.all_reduce(stormo::comm::buffer_of(std::span(x)), ReduceOp::kSum);
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
