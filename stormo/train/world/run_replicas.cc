#include <stormo/train/world/run_replicas.h>

#include <exception>
#include <mutex>

#include <stormo/tensor/allocator.h>
#include <stormo/train/failure.h>
#include <stormo/train/world/replica_threads.h>

namespace stormo::train {

void run_replicas(int n, const std::function<void(comm::Communicator&)>& body) {
  run_replicas(comm::make_inproc_group(n).take_or_throw(), body);
}

void run_replicas(std::span<const std::unique_ptr<comm::Communicator>> group,
                  const std::function<void(comm::Communicator&)>& body) {
  const int n = static_cast<int>(group.size());
  std::once_flag failed;
  std::exception_ptr first;
  ReplicaThreads(n).run(n, [&](int r) {
    comm::Communicator& world = *group[static_cast<std::size_t>(r)];
    const tensor::ThreadArena arena(world.arena());
    try {
      body(world);
      throw_if_error(world.finalize(Deadline::never()));
    } catch (...) {
      std::call_once(failed, [&] { first = std::current_exception(); });
      world.fail(failure_of_current_exception());
    }
  });
  if (first) std::rethrow_exception(first);
}

}  // namespace stormo::train
