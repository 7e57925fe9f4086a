// A rank of one host whose last rank, the victim, is stopped in the middle of a reduction, with
// memory of the others at hand. They fail, use their buffers again, continue the victim, and look
// at their buffers once it is gone.
//   fence_worker RANK SIZE STORE COUNT MEMORY FOUND_BY
// MEMORY: heap or arena. FOUND_BY: deadline or heartbeat. The job's secret is in
// STORMO_TEST_SECRET.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <stormo/comm/communicator.h>

namespace {

using namespace std::chrono_literals;
using stormo::Deadline;
using stormo::comm::Buffer;
using stormo::comm::Communicator;

constexpr float kReused = -7;

volatile bool stop_at_next_term = false;

/// The victim stops before it has written anything.
void add(const void* x, void* acc, std::int64_t n) {
  if (stop_at_next_term) {
    stop_at_next_term = false;
    std::printf("stopping\n");
    std::fflush(stdout);
    ::raise(SIGSTOP);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    static_cast<float*>(acc)[i] += static_cast<const float*>(x)[i];
  }
}

struct Block {
  Block(Communicator& c, std::int64_t count, bool in_arena)
      : heap(in_arena ? 0 : static_cast<std::size_t>(count)) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
    data = in_arena ? static_cast<float*>(c.arena().allocate(bytes)) : heap.data();
    elements = {data, static_cast<std::size_t>(count)};
    std::ranges::fill(elements, 1.0F);
  }
  std::vector<float> heap;
  float* data = nullptr;
  std::span<float> elements;
};

int run(Communicator& c, std::int64_t count, bool in_arena, bool by_deadline) {
  const int victim = c.size() - 1;
  std::int64_t pid = ::getpid();
  if (!c.broadcast(Buffer{&pid, 1, stormo::DType::kInt64}, victim).ok()) return 2;
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  const stormo::comm::Reduction sum(
      std::make_shared<const stormo::comm::UserReduction>(stormo::comm::UserReduction{"sum", add}));
  Block block(c, count, in_arena);
  const Buffer buffer = block.elements;
  // private buffers are fetched, not copied, once all have seen that they can
  for (int i = 0; i < 3; ++i) {
    if (!c.all_reduce(buffer, sum, Deadline::after(20s)).ok()) return 2;
  }
  stop_at_next_term = c.rank() == victim;
  const Deadline by = by_deadline ? Deadline::after(400ms) : Deadline::never();
  const auto outcome = c.all_reduce(buffer, sum, by);
  if (c.rank() == victim) return 0;  // was not ended
  std::printf("outcome %s\n", outcome.to_string().c_str());
  std::ranges::fill(block.elements, kReused);
  ::kill(static_cast<pid_t>(pid), SIGCONT);
  pollfd gone{process, POLLIN, 0};
  if (::poll(&gone, 1, 20'000) != 1) return 2;
  const auto wrong = std::ranges::count_if(block.elements, [](float x) { return x != kReused; });
  std::printf("corrupted %ld of %ld\n", static_cast<long>(wrong), static_cast<long>(count));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const bool by_deadline = std::string(argv[6]) == "deadline";
  stormo::transport::Rendezvous r;
  r.rank = r.local_rank = std::stoi(argv[1]);
  r.size = r.local_size = std::stoi(argv[2]);
  r.host = "here";
  r.store.text = argv[3];
  r.heartbeat_timeout = by_deadline ? 0ms : 600ms;
  const char* const hex = std::getenv("STORMO_TEST_SECRET");
  const auto secret = stormo::transport::Secret::from_hex(hex != nullptr ? hex : "");
  if (!secret.ok()) return 2;
  r.secret = *secret;
  auto world = stormo::comm::join(r);
  if (!world.ok()) {
    std::printf("join %s\n", world.status().to_string().c_str());
    return 2;
  }
  return run(**world, std::stol(argv[4]), std::string(argv[5]) == "arena", by_deadline);
}
