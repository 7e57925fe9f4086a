// Two ranks on two hosts whose network may be cut:
//   line_worker MODE [FILE [SECONDS]]
// talk: they exchange without end. bulk: rank 0 sends without end. idle: nobody sends until FILE is
// there. slow: rank 1 reads what rank 0 sends only after so many SECONDS. canary: what they send
// can be found again.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "run_as_rank.h"

namespace {

using stormo::Status;
using stormo::comm::Communicator;

void wait_for(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

Status all_reduce(Communicator& world, std::vector<float>& x) {
  return world.all_reduce(x, stormo::comm::ReduceOp::kSum);
}

Status pass(Communicator& world, std::vector<float>& x) {
  const stormo::comm::Buffer data = x;
  return world.rank() == 0 ? world.send(data, 1, 7) : world.recv(data, 0, 7);
}

/// `word`, of 20 bytes, again and again.
std::vector<float> filled(const char* word) {
  std::vector<float> x(64 << 10);
  for (std::size_t i = 0; i + 5 <= x.size(); i += 5) std::memcpy(&x[i], word, 20);
  return x;
}

Status show_canaries(Communicator& world) {
  std::vector<float> collective = filled("CanaryInACollective!");
  STORMO_RETURN_IF_ERROR(world.broadcast(collective, 0));
  std::vector<float> message = filled("CanaryInAMessage!!!!");
  for (int i = 0; i < 2; ++i) STORMO_RETURN_IF_ERROR(pass(world, message));
  return world.finalize(stormo::Deadline::never());
}

void announce() {
  std::puts("working");
  std::fflush(stdout);
}

Status run(Communicator& world, const std::string& mode, const std::string& file, int seconds) {
  if (mode == "canary") return show_canaries(world);
  std::vector<float> small(16, 1);
  std::vector<float> large(4 << 20, 1);
  STORMO_RETURN_IF_ERROR(all_reduce(world, small));
  announce();
  if (mode == "idle") {
    while (::access(file.c_str(), F_OK) != 0) wait_for(10);
  }
  if (mode == "slow") {
    if (world.rank() == 1) wait_for(seconds * 1000);
    STORMO_RETURN_IF_ERROR(pass(world, large));
    return world.finalize(stormo::Deadline::never());
  }
  for (;;) {
    STORMO_RETURN_IF_ERROR(mode == "bulk" ? pass(world, large) : all_reduce(world, small));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return stormo::testing::run_as_rank([&](Communicator& world) {
    return run(world, argv[1], argc > 2 ? argv[2] : "", argc > 3 ? std::atoi(argv[3]) : 0);
  });
}
