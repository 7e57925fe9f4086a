// A rank that measures on hosts with shaped links. Arguments are tasks; rank 0 prints a line for
// each, "TASK VALUE...":
// Times are the least of several rounds.
//   probe                 seconds of latency, and per byte, of a message between two hosts
//   time:ALGORITHM:BYTES  seconds of an all-reduce; all tasks of this kind take turns in rounds
//   wire:ALGORITHM:BYTES  bytes that the busiest interface sends in an all-reduce
//   sets:BYTES            seconds of an all-reduce of the even ranks alone, and while the odd ranks
//                         have one of their own
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "run_as_rank.h"

namespace {

using stormo::Deadline;
using stormo::Result;
using stormo::Status;
using stormo::comm::Buffer;
using stormo::comm::Communicator;
using stormo::comm::ReduceOp;

constexpr int kRounds = 7;
constexpr auto kLong = std::chrono::seconds(60);

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of times of the same thing: whatever else the machine does can only add to them.
double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

Result<double> largest(Communicator& world, double value) {
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&value, 1), ReduceOp::kMax));
  return value;
}

struct Task {
  std::string text;
  std::string algorithm;
  std::int64_t bytes = 0;
};

Task parse(const std::string& text) {
  Task task{text, "", 0};
  std::istringstream in(text.substr(text.find(':') + 1));
  if (std::count(text.begin(), text.end(), ':') == 2) std::getline(in, task.algorithm, ':');
  in >> task.bytes;
  return task;
}

/// Memory that peers can read.
class Operand {
 public:
  Operand(Communicator& world, std::int64_t bytes)
      : world_(world),
        data_(static_cast<float*>(
            world.arena().allocate(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 4))))) {
    buffer_ = {data_, bytes / 4, stormo::DType::kFloat32};
    std::fill_n(data_, buffer_.count, 0.0f);
  }
  ~Operand() { world_.arena().deallocate(data_); }
  Operand(const Operand&) = delete;
  const Buffer& buffer() const { return buffer_; }

 private:
  Communicator& world_;
  float* data_;
  Buffer buffer_;
};

/// Of the slowest rank.
Result<double> all_reduce_once(Communicator& world, const Task& task, const Operand& x) {
  stormo::comm::Request r;
  r.kind = stormo::comm::OperationKind::kAllReduce;
  r.in = r.out = {&x.buffer(), 1};
  r.algorithm = task.algorithm;
  STORMO_RETURN_IF_ERROR(world.barrier());
  const double begin = now();
  STORMO_RETURN_IF_ERROR(world.run(r, Deadline::after(kLong)));
  return largest(world, now() - begin);
}

Status time_all(Communicator& world, const std::vector<Task>& tasks) {
  std::vector<std::vector<double>> times(tasks.size());
  for (int round = -1; round < kRounds; ++round) {  // the first is for warming up
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const Operand x(world, tasks[i].bytes);
      const int repeats = tasks[i].bytes < (1 << 20) ? 10 : 1;
      for (int k = 0; k < repeats; ++k) {
        STORMO_ASSIGN_OR_RETURN(const double took, all_reduce_once(world, tasks[i], x));
        if (round >= 0) times[i].push_back(took);
      }
    }
  }
  for (std::size_t i = 0; i < tasks.size() && world.rank() == 0; ++i)
    std::printf("%s %g\n", tasks[i].text.c_str(), least(times[i]));
  return {};
}

/// What this host's interface has sent.
double bytes_sent() {
  std::ifstream in("/proc/self/net/dev");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.find("eth0") == std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    double value = 0;
    for (int field = 0; field <= 8; ++field) fields >> value;
    return value;
  }
  return -1;
}

Status count_wire(Communicator& world, const Task& task) {
  const Operand x(world, task.bytes);
  STORMO_RETURN_IF_ERROR(all_reduce_once(world, task, x).status());
  const double before = bytes_sent();
  for (int i = 0; i < kRounds; ++i)
    STORMO_RETURN_IF_ERROR(all_reduce_once(world, task, x).status());
  STORMO_ASSIGN_OR_RETURN(const double most, largest(world, bytes_sent() - before));
  if (world.rank() == 0) std::printf("%s %g\n", task.text.c_str(), most / kRounds);
  return {};
}

/// Half a round trip between the first rank and the last.
Result<double> half_trip(Communicator& world, std::int64_t bytes, int repeats) {
  std::vector<float> x(static_cast<std::size_t>(bytes) / 4);
  const Buffer b = x;
  const stormo::Rank last = world.size() - 1;
  std::vector<double> times{0};
  for (int i = 0; i <= repeats; ++i) {
    STORMO_RETURN_IF_ERROR(world.barrier());
    const double begin = now();
    if (world.rank() == 0) {
      STORMO_RETURN_IF_ERROR(world.send(b, last, 1));
      STORMO_RETURN_IF_ERROR(world.recv(b, last, 1));
    } else if (world.rank() == last) {
      STORMO_RETURN_IF_ERROR(world.recv(b, 0, 1));
      STORMO_RETURN_IF_ERROR(world.send(b, 0, 1));
    }
    if (i == 0) times.clear();  // the first is for warming up
    times.push_back((now() - begin) / 2);
  }
  return largest(world, world.rank() == 0 ? least(times) : 0);
}

Status probe(Communicator& world) {
  // long enough for the shaper's burst not to count
  constexpr std::int64_t kSmall = 8, kLarge = 8 << 20;
  STORMO_ASSIGN_OR_RETURN(const double latency, half_trip(world, kSmall, 100));
  STORMO_ASSIGN_OR_RETURN(const double whole, half_trip(world, kLarge, 3));
  if (world.rank() == 0) std::printf("probe %g %g\n", latency, (whole - latency) / kLarge);
  return {};
}

Status run_sets(Communicator& world, const Task& task) {
  std::unique_ptr<Communicator> mine;
  for (const int parity : {0, 1}) {
    std::vector<stormo::Rank> members;
    for (stormo::Rank r = parity; r < world.size(); r += 2) members.push_back(r);
    STORMO_ASSIGN_OR_RETURN(auto group, world.subgroup(members, Deadline::after(kLong)));
    if (group != nullptr) mine = std::move(group);
  }
  const Operand x(world, task.bytes);
  std::vector<double> alone, both;
  for (int i = 0; i <= 2 * kRounds; ++i) {
    const bool all = i % 2 == 0;
    STORMO_RETURN_IF_ERROR(world.barrier());
    const double begin = now();
    if (all || world.rank() % 2 == 0)
      STORMO_RETURN_IF_ERROR(mine->all_reduce(x.buffer(), ReduceOp::kSum));
    STORMO_ASSIGN_OR_RETURN(const double took, largest(world, now() - begin));
    if (i > 0) (all ? both : alone).push_back(took);  // the first is for warming up
  }
  STORMO_RETURN_IF_ERROR(mine->finalize(Deadline::after(kLong)));
  if (world.rank() == 0) std::printf("%s %g %g\n", task.text.c_str(), least(alone), least(both));
  return {};
}

Status run_tasks(Communicator& world, const std::vector<std::string>& texts) {
  std::vector<Task> timed;
  for (const std::string& text : texts) {
    const Task task = parse(text);
    if (text == "probe") STORMO_RETURN_IF_ERROR(probe(world));
    if (text.starts_with("wire:")) STORMO_RETURN_IF_ERROR(count_wire(world, task));
    if (text.starts_with("sets:")) STORMO_RETURN_IF_ERROR(run_sets(world, task));
    if (text.starts_with("time:")) timed.push_back(task);
  }
  STORMO_RETURN_IF_ERROR(time_all(world, timed));
  return world.finalize(Deadline::after(kLong));
}

}  // namespace

int main(int argc, char** argv) {
  return stormo::testing::run_as_rank([&](Communicator& world) {
    return run_tasks(world, {argv + 1, argv + argc});
  });
}
