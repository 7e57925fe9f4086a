#include <stormo/train/world/init.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include <stormo/launch/environment.h>
#include <stormo/launch/process/other_load.h>
#include <stormo/tensor/allocator.h>
#include <stormo/train/failure.h>
#include <stormo/train/world/busy_watch.h>
#include <stormo/train/world/thread_share.h>

namespace stormo {
namespace {

// std::terminate knows nothing but the process: the handler finds its group here.
std::atomic<comm::Communicator*> g_group{nullptr};
std::terminate_handler g_previous_handler = nullptr;
// There is one World at a time.
std::unique_ptr<train::BusyWatch> g_busy_watch;

[[noreturn]] void fail_group_and_terminate() {
  comm::Communicator* group = g_group.exchange(nullptr);
  if (group != nullptr && std::current_exception()) {
    group->fail(train::failure_of_current_exception());
  }
  g_previous_handler();
  std::abort();
}

Result<int> set_threads(comm::Communicator& world, int requested) {
  if (requested == 0) {
    STORMO_ASSIGN_OR_RETURN(requested, launch::threads_per_rank(launch::process_environment()));
  }
  if (requested == 0 && world.size() == 1) {
    const launch::LoadedThreads beside = launch::threads_beside_others(launch::read_cpus(), 1);
    requested = beside.threads;
    if (!beside.note.empty()) std::fprintf(stderr, "stormo: %s\n", beside.note.c_str());
  }
  train::CpuShare mine = train::current_cpu_share(world.cross_rank());
  std::vector<train::CpuShare> all(static_cast<std::size_t>(world.size()));
  const auto bytes = static_cast<std::int64_t>(sizeof mine);
  STORMO_RETURN_IF_ERROR(
      world.all_gather(comm::Buffer{&mine, bytes, DType::kUInt8},
                       comm::Buffer{all.data(), bytes * world.size(), DType::kUInt8}));
  const train::ThreadShare share = train::share_threads(all, requested);
  const launch::EnvironmentReader job = launch::process_environment();
  const auto local_rank = job("STORMO_LOCAL_RANK");
  // with one thread each it is the number of ranks, which Stormo's launcher has told
  const bool told = local_rank && share.threads == 1;
  if (share.oversubscribed && !told && world.rank() == 0) {
    std::fprintf(stderr,
                 "stormo: warning: more threads than cores (%d rank(s) on this host, %d thread(s) "
                 "each, %d usable core(s)); ranks will wait for each other, start fewer per host\n",
                 world.local_size(), share.threads, static_cast<int>(mine.usable_cores));
  }
  at::set_num_threads(share.threads);
  if (!share.oversubscribed) {
    // workers of server processes have groups of their own; of their host one process speaks
    const bool is_first = local_rank.value_or("0") == "0";
    g_busy_watch = std::make_unique<train::BusyWatch>(
        share.threads, [speaks = is_first && world.local_rank() == 0,
                        rank = world.rank()](const std::string& line) {
          if (speaks) std::fprintf(stderr, "stormo: rank %d: %s\n", rank, line.c_str());
        });
  }
  return share.threads;
}

}  // namespace

World::World(std::unique_ptr<comm::Communicator> communicator)
    : communicator_(std::move(communicator)), exceptions_at_start_(std::uncaught_exceptions()) {}

World::World(World&& other) noexcept = default;

World::~World() {
  if (communicator_ == nullptr) return;  // moved from
  g_group = nullptr;
  g_busy_watch.reset();
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    communicator_->fail(Status(Code::kException,
                               "rank " + std::to_string(rank()) + " left the job by an exception"));
    return;
  }
  // a failure that came before has been returned to the caller
  const bool had_failed = !communicator_->status().ok();
  const Status status = communicator_->finalize(Deadline::never());
  if (!status.ok() && !had_failed) std::fprintf(stderr, "stormo: %s\n", status.to_string().c_str());
}

World init(int threads) {
  const transport::Rendezvous rendezvous =
      launch::read_environment(launch::process_environment()).take_or_throw();
  return init(comm::join(rendezvous).take_or_throw(), threads);
}

World init(std::unique_ptr<comm::Communicator> group, int threads) {
  tensor::install_arena_allocator(group->arena());
  g_group = group.get();
  const std::terminate_handler previous = std::set_terminate(fail_group_and_terminate);
  if (previous != fail_group_and_terminate) g_previous_handler = previous;  // an earlier World's
  World world(std::move(group));
  world.threads_ = set_threads(world, threads).take_or_throw();
  return world;
}

}  // namespace stormo
