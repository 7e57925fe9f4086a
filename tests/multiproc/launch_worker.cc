// A rank for launch_test.cc: does what its first argument says. Deliberately small; every mode
// announces itself with one line, so that tests wait for lines and never for time.
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <string>

#include <stormo/launch/environment.h>
#include <stormo/transport/store.h>

namespace {

using stormo::Deadline;
using stormo::transport::Rendezvous;
using stormo::transport::StoreClient;

volatile std::sig_atomic_t caught = 0;

/// One write per line: rank processes share no lock.
void say(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, line.data(), line.size());
}

[[noreturn]] void wait_for_death() {
  while (true) ::pause();
}

std::unique_ptr<StoreClient> connect(const Rendezvous& r) {
  return StoreClient::connect({r.store, r.secret, std::chrono::milliseconds(100)},
                              Deadline::after(std::chrono::seconds(20)))
      .take_or_throw();
}

int lines(int count) {
  const std::string filler(60, '.');
  for (int i = 0; i < count; ++i) {
    // In two writes: a line-wise launcher has to put it together.
    std::printf("line %d %s", i, filler.c_str());
    std::fflush(stdout);
    std::printf(" end\n");
    std::fprintf(stderr, "error %d\n", i);
  }
  return 0;
}

int flood(std::size_t bytes) {
  const std::string line = std::string(1023, 'x') + "\n";
  for (std::size_t n = 0; n < bytes; n += line.size())
    std::fwrite(line.data(), 1, line.size(), stdout);
  return 0;
}

int grandchild() {
  if (::fork() == 0) wait_for_death();
  say("grandchild started");
  wait_for_death();
}

int interruptible() {
  const auto handler = [](int signal) { caught = signal; };
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
  sigset_t none;
  sigset_t both;
  ::sigemptyset(&none);
  ::sigemptyset(&both);
  ::sigaddset(&both, SIGINT);
  ::sigaddset(&both, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &both, nullptr);
  say("ready");
  while (caught == 0) ::sigsuspend(&none);
  say("saved");
  return 128 + caught;
}

/// Looks for the job's secret where any local user or log could see it.
int hidden_secret(const Rendezvous& r) {
  if (r.secret.empty()) return 9;
  const std::string digits = r.secret.to_hex();
  int looked_at = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    for (const char* file : {"environ", "cmdline"}) {
      std::ifstream in(entry.path() / file);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      if (text.empty()) continue;
      ++looked_at;
      if (text.find(digits) != std::string::npos) {
        say("found the secret in " + (entry.path() / file).string());
        return 8;
      }
    }
  }
  say("hidden in " + std::to_string(looked_at));
  return looked_at > 2 ? 0 : 7;
}

int meet(const Rendezvous& r) {
  const auto store = connect(r);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  stormo::throw_if_error(store->set("here/" + std::to_string(r.rank), r.host, by));
  std::string all;
  for (int i = 0; i < r.size; ++i)
    all += " " + store->get("here/" + std::to_string(i), by).take_or_throw();
  say("met" + all + " through " + r.store.text.substr(0, r.store.text.find(':')));
  stormo::throw_if_error(store->goodbye(by));
  return 0;
}

int last_will(const Rendezvous& r) {
  const auto store = connect(r);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  std::latch asked(
      2);  // for the second time: the first note is on its way, and the will follows it
  store->set_note_source([&asked, times = 0]() mutable {
    if (++times <= 2) asked.count_down();
    return std::string("all_reduce #40");
  });
  asked.wait();
  stormo::throw_if_error(
      store->set_will("failure", "rank " + std::to_string(r.rank) + ": left", {}, by));
  say("joined");
  wait_for_death();
}

int report(const Rendezvous& r) {
  const auto store = connect(r);
  const Deadline by = Deadline::after(std::chrono::seconds(20));
  if (r.rank == 1) {
    (void)store->set_if_absent("failure", "rank 1: step 7: loss is not finite", by);
    return 3;
  }
  (void)store->get("failure", by);
  return 1;
}

std::string affinity() {
  cpu_set_t set;
  ::sched_getaffinity(0, sizeof set, &set);
  std::string out;
  for (std::size_t i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) out += (out.empty() ? "" : ",") + std::to_string(i);
  return out;
}

int run(const std::string& mode, int value) {
  const Rendezvous r =
      stormo::launch::read_environment(stormo::launch::process_environment()).take_or_throw();
  const auto threads = std::getenv("STORMO_THREADS");
  if (mode == "place")
    say("rank " + std::to_string(r.rank) + "/" + std::to_string(r.size) + " local " +
        std::to_string(r.local_rank) + "/" + std::to_string(r.local_size) + " host " +
        std::to_string(r.cross_rank) + "/" + std::to_string(r.cross_size) + " " + r.host +
        " interface '" + r.interface + "' threads " + (threads ? threads : "?") + " cpus " +
        affinity());
  else if (mode == "lines")
    return lines(value);
  else if (mode == "flood")
    return flood(static_cast<std::size_t>(value));
  else if (mode == "grandchild")
    return grandchild();
  else if (mode == "interruptible")
    return interruptible();
  else if (mode == "secret")
    return hidden_secret(r);
  else if (mode == "meet")
    return meet(r);
  else if (mode == "will")
    return last_will(r);
  else if (mode == "report")
    return report(r);
  else if (mode == "exit1" && r.rank == 1)
    return value;
  else if (mode == "stubborn")
    std::signal(SIGTERM, [](int) {
      constexpr char kText[] = "ignored\n";
      [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, kText, sizeof kText - 1);
    });
  if (mode == "wait" || mode == "stubborn" || mode == "exit1") {
    say("ready");
    wait_for_death();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: %s\n", e.what());
    return 1;
  }
}
