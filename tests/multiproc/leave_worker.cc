// A rank of a job whose ranks leave at different times:
//   leave_worker MODE    see the test
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/launch/environment.h>

namespace {

using stormo::Deadline;
using stormo::Rank;
using stormo::Status;
using stormo::comm::Communicator;
using stormo::comm::ReduceOp;

constexpr Rank kLeaver = 1;
constexpr auto kGenerous = std::chrono::seconds(30);

Status sum(Communicator& group) {
  std::vector<double> x(1000, 1.0);
  STORMO_RETURN_IF_ERROR(group.all_reduce(x, ReduceOp::kSum, Deadline::after(kGenerous)));
  if (x.back() == group.size()) return {};
  return stormo::invalid_argument("wrong sum");
}

/// Longer than the heartbeat and the limits of stalls.
Status work_alone_for_a_while(Communicator& world) {
  const Rank me[] = {world.rank()};
  STORMO_ASSIGN_OR_RETURN(const auto alone,
                          world.group_of(me, "alone", Deadline::after(kGenerous)));
  const Deadline end = Deadline::after(std::chrono::seconds(5));
  while (!end.expired()) {
    STORMO_RETURN_IF_ERROR(sum(*alone));
    ::poll(nullptr, 0, 1);  // leaves the processors to others
  }
  return {};
}

/// Those that go on: a new group, and an operation that lasts.
Status go_on(Communicator& world, Rank without) {
  std::vector<Rank> rest;
  for (Rank r = 0; r < world.size(); ++r) {
    if (r != without) rest.push_back(r);
  }
  STORMO_ASSIGN_OR_RETURN(const auto group,
                          world.group_of(rest, "rest", Deadline::after(kGenerous)));
  if (group->rank() == 0) STORMO_RETURN_IF_ERROR(work_alone_for_a_while(world));
  return sum(*group);
}

/// The leaver destroys a group, and stays in the job.
Status wait_in_a_destroyed_group(Communicator& world) {
  if (world.rank() <= kLeaver) {
    const Rank pair[] = {0, kLeaver};
    STORMO_ASSIGN_OR_RETURN(auto group, world.group_of(pair, "pair", Deadline::after(kGenerous)));
    STORMO_RETURN_IF_ERROR(sum(*group));
    if (world.rank() == 0) return sum(*group);
  }
  return sum(world);
}

bool has_pending(const std::string& mode) {
  return mode == "isend" || mode == "irecv" || mode == "async";
}

/// An operation in which no other rank takes part.
stormo::comm::Work start_pending(Communicator& world, const std::string& mode,
                                 std::span<std::uint8_t> data) {
  if (mode == "isend") return world.send_async(data, 0, 7);
  if (mode == "irecv") return world.recv_async(data, 0, 7);
  const stormo::comm::Buffer buffer = data;
  return world.all_reduce_async({&buffer, 1}, ReduceOp::kMax);
}

/// What the mode wants of this rank; then it leaves.
Status perform(Communicator& world, const std::string& mode) {
  if (mode == "alone") return world.rank() == 0 ? work_alone_for_a_while(world) : Status();
  if (mode == "rank-0-first") return world.rank() == 0 ? Status() : go_on(world, 0);
  if (mode == "subgroup") return wait_in_a_destroyed_group(world);
  std::int64_t x = 0;
  if (mode == "any") {
    Rank source = 0;
    return world.rank() == 0 ? world.recv_any(std::span(&x, 1), 7, source) : Status();
  }
  if (world.rank() == kLeaver) return {};
  if (mode == "stopped" || has_pending(mode)) return go_on(world, kLeaver);
  if (mode == "message") return world.recv(std::span(&x, 1), kLeaver, 7);
  return sum(world);
}

/// What it does when it has left.
void stay(const std::string& mode, Rank rank) {
  const bool is_leaver = mode == "any" ? rank != 0 : rank == kLeaver;
  if (mode == "stopped" && is_leaver) ::raise(SIGSTOP);
  const bool stays = mode == "stays" || mode == "message" || mode == "any";
  while (stays && is_leaver) ::pause();  // until it is killed
}

void say(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

int run(const std::string& mode) {
  const auto place = stormo::launch::read_environment(stormo::launch::process_environment());
  if (!place.ok()) return 2;
  std::unique_ptr<Communicator> held;  // longer than the world
  auto joined = stormo::comm::join(*place);
  if (!joined.ok()) return 2;
  Communicator& world = **joined;
  const auto fail = [](const Status& why) {
    std::fprintf(stderr, "%s\n", why.to_string().c_str());
    return 1;
  };
  const Rank all_ranks[] = {0, 1, 2};
  auto of_all = world.subgroup(all_ranks, Deadline::after(kGenerous));
  if (!of_all.ok()) return fail(of_all.status());
  if (const Status all = sum(**of_all); !all.ok()) return fail(all);
  if (world.rank() == 0) held = std::move(*of_all);
  for (const char* step : {"step 1", "step 2"}) world.set_section(step);  // stalls are short now
  if (const Status done = perform(world, mode); !done.ok()) return fail(done);
  const Rank rank = world.rank();
  std::vector<std::uint8_t> data(1 << 20);
  stormo::comm::Work pending;
  const bool is_pending = has_pending(mode) && rank == kLeaver;
  if (is_pending) pending = start_pending(world, mode, data);
  if (const Status left = world.leave(); !left.ok()) return fail(left);
  if (is_pending && pending.wait().code() != stormo::Code::kCancelled) return 3;
  say("left");
  stay(mode, rank);
  joined->reset();
  held.reset();
  say("destroyed");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : ""); }
