// A rank that works for a while, and then does what its arguments say, or waits for it:
//   stall_worker MODE [RANK]     the rank that does it, default 1
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "run_as_rank.h"

namespace {

using namespace std::chrono_literals;
using stormo::Status;
using stormo::comm::Communicator;

Status one_step(Communicator& world, int step) {
  world.set_section("step " + std::to_string(step));
  float x = 1;
  return world.all_reduce(std::span(&x, 1), stormo::comm::ReduceOp::kSum);
}

void wait_for(std::chrono::milliseconds time) {
  ::poll(nullptr, 0, static_cast<int>(time.count()));
}

}  // namespace

// Exported, so that stacks name them.
extern "C" {
__attribute__((noinline)) void wedged_in_a_lock() {
  static std::timed_mutex lock;
  lock.lock();
  if (lock.try_lock_for(1h)) std::puts("the lock was free");
}

__attribute__((noinline)) void reads_data_that_never_comes() {
  int ends[2];
  char byte = 0;
  if (::pipe(ends) != 0 || ::read(ends[0], &byte, 1) != 0) std::puts("the pipe broke");
}
}

namespace {

Status do_it(Communicator& world, const std::string& mode) {
  world.set_section("step 21 forward");
  if (mode == "lock") wedged_in_a_lock();
  if (mode == "data") reads_data_that_never_comes();
  if (mode == "stop") ::raise(SIGSTOP);
  if (mode == "kill") ::raise(SIGKILL);
  if (mode == "kill") ::raise(SIGKILL);
  if (mode == "late") wait_for(3s);
  if (mode == "pause") wait_for(1500ms);
  if (mode == "alone") wait_for(2500ms);
  if (mode == "beat") {
    for (int batch = 0; batch < 30; ++batch) {
      world.set_section("evaluate, batch " + std::to_string(batch));
      wait_for(100ms);
    }
  }
  if (mode == "message" || mode == "unsent") {
    return world.recv({nullptr, 0, stormo::DType::kUInt8}, 0, 7);
  }
  return {};
}

Status run(Communicator& world, const std::string& mode, int rank) {
  for (int step = 1; step <= 20; ++step) STORMO_RETURN_IF_ERROR(one_step(world, step));
  std::puts("working");
  std::fflush(stdout);
  if (world.rank() == rank || mode == "alone") STORMO_RETURN_IF_ERROR(do_it(world, mode));
  if (mode == "unsent" && world.rank() == 0) wedged_in_a_lock();
  if (mode == "root") {  // who needs nothing of the culprit goes on, and waits for it later
    if (world.rank() == rank) wedged_in_a_lock();
    float x = 1;
    STORMO_RETURN_IF_ERROR(world.broadcast(std::span(&x, 1), 0));
  }
  for (int step = 21; step <= 25; ++step) STORMO_RETURN_IF_ERROR(one_step(world, step));
  return world.finalize(stormo::Deadline::never());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return stormo::testing::run_as_rank(
      [&](Communicator& world) { return run(world, argv[1], argc > 2 ? std::atoi(argv[2]) : 1); });
}
