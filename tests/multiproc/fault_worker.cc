// A rank of a job in which one rank, the victim, is killed or stopped in the middle of an
// operation. What is left of the job says how that ended, forms a new group, and uses it. A stopped
// victim is continued by those who share its host, or by rank 0, as soon as they have failed; it
// goes on where it was, says how that ended, and exits with 3.
//   fault_worker OPERATION HOSTS RANK VICTIM FAULT MOMENT STORE HEARTBEAT_MS DEADLINE_MS
// HOSTS: ranks per host, "2,2". FAULT: kill or stop. MOMENT: during the operation, or before it:
// the victim never arrives. The job's secret is in STORMO_TEST_SECRET.
#include <dirent.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/conformance/every_operation.h"

namespace {

using namespace std::chrono_literals;
using stormo::Deadline;
using stormo::Status;
using stormo::comm::Communicator;
using stormo::comm::NamedOperation;
using stormo::transport::Rendezvous;

constexpr std::int64_t kCount = 60013;
constexpr int kContinued = 3;                     // exit code
constexpr std::chrono::milliseconds kBefore{20};  // the others are in the operation by then

struct Scenario {
  const NamedOperation* operation = nullptr;
  std::vector<int> hosts;
  int victim = 0;
  int signal = SIGKILL;
  bool during = true;
  stormo::Duration deadline{0};
};

/// Gives rank `r` its place on hosts of so many ranks.
void place(Rendezvous& r, const std::vector<int>& hosts, int rank) {
  r.rank = rank;
  r.cross_size = static_cast<int>(hosts.size());
  r.size = 0;
  for (int h = 0; h < r.cross_size; ++h) {
    const int here = hosts[static_cast<std::size_t>(h)];
    if (rank >= r.size && rank < r.size + here) {
      r.cross_rank = h;
      r.local_rank = rank - r.size;
      r.local_size = here;
      r.host = "host" + std::to_string(h);
    }
    r.size += here;
  }
}

/// Those that are left are numbered anew; a host without ranks is none.
void place_survivor(Rendezvous& r, std::vector<int> hosts, int rank, int victim) {
  Rendezvous lost;
  place(lost, hosts, victim);
  const auto host = hosts.begin() + lost.cross_rank;
  if (--*host == 0) hosts.erase(host);
  place(r, hosts, rank - (rank > victim ? 1 : 0));
}

long resident_kilobytes() {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;) {
    long value = 0;
    if (word == "VmRSS:" && in >> value) return value;
  }
  return 0;
}

int open_descriptors() {
  int n = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++n;
  if (folder != nullptr) ::closedir(folder);
  return n;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = '|';
  }
  return text;
}

volatile std::sig_atomic_t fault_signal = SIGKILL;
volatile std::sig_atomic_t fault_is_over = 0;

/// From now on the fault is on its way.
void arm_the_fault(int signal) {
  fault_signal = signal;
  std::signal(SIGALRM, [](int) {
    ::raise(fault_signal);
    fault_is_over = 1;  // stopped, and continued
  });
  const itimerval once{{0, 0}, {0, kBefore / 1us}};
  ::setitimer(ITIMER_REAL, &once, nullptr);
}

/// Until the operation fails: its outcome.
Status run_into_the_fault(Communicator& world, const Scenario& s) {
  if (world.rank() == s.victim) arm_the_fault(s.signal);
  while (world.rank() == s.victim && !s.during && fault_is_over == 0) ::poll(nullptr, 0, 10);
  for (;;) {
    const auto start = std::chrono::steady_clock::now();
    const Status outcome = s.operation->run(world, kCount, Deadline::after(s.deadline));
    if (outcome.ok()) continue;
    const auto took = std::chrono::steady_clock::now() - start;
    std::printf("took %ld ms\n", static_cast<long>(took / 1ms));
    std::printf("outcome %s\n", one_line(outcome.to_string()).c_str());
    std::printf("cause %s\n", one_line(world.status().to_string()).c_str());
    return outcome;
  }
}

Status use_new_group(const Rendezvous& r) {
  STORMO_ASSIGN_OR_RETURN(auto group, stormo::comm::join(r));
  const auto all_reduce = stormo::comm::every_operation().front().run;
  STORMO_RETURN_IF_ERROR(all_reduce(*group, kCount, Deadline::after(10s)));
  return group->finalize(Deadline::after(10s));
}

/// Everybody learns the victim's process.
pid_t process_of_victim(Communicator& world, const Scenario& s) {
  std::int64_t pid = ::getpid();
  const stormo::comm::Buffer buffer{&pid, 1, stormo::DType::kInt64};
  return world.broadcast(buffer, s.victim, Deadline::after(10s)).ok() ? static_cast<pid_t>(pid) : 0;
}

bool is_to_continue_the_victim(const Scenario& s, int rank) {
  Rendezvous mine, theirs;
  place(mine, s.hosts, rank);
  place(theirs, s.hosts, s.victim);
  return theirs.local_size > 1 ? mine.cross_rank == theirs.cross_rank : rank == 0;
}

int run(const Scenario& s, Rendezvous r, int rank) {
  place(r, s.hosts, rank);
  long kilobytes = 0;
  int descriptors = 0;
  {
    auto world = stormo::comm::join(r);
    if (!world.ok()) {
      std::printf("join %s\n", world.status().to_string().c_str());
      return 2;
    }
    const pid_t victim = process_of_victim(**world, s);
    if (victim == 0) return 2;
    Status warm = s.operation->run(**world, kCount, Deadline::after(10s));
    if (warm.ok()) warm = s.operation->run(**world, kCount, Deadline::after(10s));
    if (warm.ok()) warm = (*world)->barrier(Deadline::after(10s));
    // a slow rank may meet the fault in here: then the next call tells
    if (!warm.ok()) std::printf("warm-up %s\n", one_line(warm.to_string()).c_str());
    kilobytes = resident_kilobytes();
    descriptors = open_descriptors();
    if (run_into_the_fault(**world, s).ok()) return 2;
    if (rank == s.victim) return kContinued;
    if (s.signal == SIGSTOP && is_to_continue_the_victim(s, rank)) ::kill(victim, SIGCONT);
    std::printf("grown %ld kB\n", resident_kilobytes() - kilobytes);
  }
  r.epoch = 1;
  place_survivor(r, s.hosts, rank, s.victim);
  const Status again = use_new_group(r);
  std::printf("new group %s\n", one_line(again.to_string()).c_str());
  std::printf("descriptors %d\n", open_descriptors() - descriptors);
  return again.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 10) return 2;
  Scenario s;
  for (const NamedOperation& operation : stormo::comm::every_operation()) {
    if (operation.name == argv[1]) s.operation = &operation;
  }
  std::istringstream hosts(argv[2]);
  for (std::string n; std::getline(hosts, n, ',');) s.hosts.push_back(std::stoi(n));
  s.victim = std::stoi(argv[4]);
  s.signal = std::string(argv[5]) == "stop" ? SIGSTOP : SIGKILL;
  s.during = std::string(argv[6]) == "during";
  s.deadline = std::stoi(argv[9]) * 1ms;
  Rendezvous r;
  r.store.text = argv[7];
  r.heartbeat_timeout = std::stoi(argv[8]) * 1ms;
  r.join_timeout = 10s;
  r.interface = "lo";
  const char* const hex = std::getenv("STORMO_TEST_SECRET");
  const auto secret = stormo::transport::Secret::from_hex(hex != nullptr ? hex : "");
  if (s.operation == nullptr || !secret.ok()) return 2;
  r.secret = *secret;
  return run(s, std::move(r), std::stoi(argv[3]));
}
