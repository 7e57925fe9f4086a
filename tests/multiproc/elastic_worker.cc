// A rank of an elastic job for elastic_launch_test.cc: does what its first argument says. Appends a
// byte to the file LOADED when it is loaded.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <stormo/launch/environment.h>
#include <stormo/launch/process/fork_server.h>
#include <stormo/membership/register_address.h>
#include <stormo/transport/store/store.h>

namespace {

using namespace stormo;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "none" : value;
}

/// One write per line: rank processes share no lock.
void say(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const ssize_t n = ::write(STDOUT_FILENO, line.data(), line.size());
}

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

struct Place {
  transport::Rendezvous job;
  int incarnation = 0;
  std::unique_ptr<transport::StoreClient> store;
};

Place find_place() {
  Place p;
  p.job = launch::read_environment(launch::process_environment()).take_or_throw();
  p.incarnation = std::atoi(variable("STORMO_INCARNATION").c_str());
  p.store = transport::StoreClient::connect({p.job.store, p.job.secret}, soon()).take_or_throw();
  return p;
}

/// Rank 1 dies once. The others end when its replacement is there.
int once(Place& p) {
  say("begins " + std::to_string(p.incarnation));
  if (p.job.rank == 1 && p.incarnation == 1) ::kill(::getpid(), SIGKILL);
  if (p.job.rank == 1) throw_if_error(p.store->set("back", "x", soon()));
  (void)p.store->get("back", soon()).take_or_throw();
  return 0;
}

/// Rank 0 writes the first record, and all read it.
int use_register(Place& p) {
  const membership::RegisterAccess access{
      .job = variable("STORMO_JOB"), .secret = p.job.secret, .password = {}};
  const auto reg = membership::open_register(variable("STORMO_REGISTER"), access).take_or_throw();
  if (p.job.rank == 0) {
    if (reg->read(soon()).take_or_throw().epoch != 0) return 9;
    membership::EpochRecord first{.job = access.job, .epoch = 1};
    first.members.push_back({.identity = "rank 0", .incarnation = 1, .address = "here"});
    if (!reg->compare_and_swap(first, soon()).take_or_throw().done) return 8;
    throw_if_error(p.store->set("written", "x", soon()));
  }
  (void)p.store->get("written", soon()).take_or_throw();
  const membership::EpochRecord present = reg->read(soon()).take_or_throw();
  say("epoch " + std::to_string(present.epoch) + " of " +
      (present.job == access.job ? "this job" : "another job"));
  return 0;
}

/// Rank 0 writes the first record, of all ranks; then all wait.
void write_record(const Place& p) {
  const membership::RegisterAccess access{
      .job = variable("STORMO_JOB"), .secret = p.job.secret, .password = {}};
  const auto reg = membership::open_register(variable("STORMO_REGISTER"), access).take_or_throw();
  membership::EpochRecord first{.job = access.job, .epoch = 1};
  for (int r = 0; r < p.job.size; ++r) {
    first.members.push_back(
        {.identity = p.job.host + "/" + std::to_string(r), .incarnation = 1, .address = "here"});
  }
  (void)reg->compare_and_swap(first, soon()).take_or_throw();
}

int run(const std::string& mode) {
  Place p = find_place();
  if (mode == "once") return once(p);
  if (mode == "register") return use_register(p);
  if (mode == "place") {
    say("job " + variable("STORMO_JOB") + ", register " + variable("STORMO_REGISTER") +
        ", incarnation " + variable("STORMO_INCARNATION"));
    return 0;
  }
  if (mode == "trains" && p.job.rank == 0) write_record(p);
  if (mode == "refuses" && p.incarnation > 1) return 2;
  say("waits " + std::to_string(p.incarnation));
  while (true) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  if (std::FILE* const loaded = std::fopen(variable("LOADED").c_str(), "a")) {
    std::fputc('.', loaded);
    std::fclose(loaded);
  }
  launch::serve_forks(argc, argv);
  try {
    return run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "worker: %s\n", e.what());
    return 1;
  }
}
