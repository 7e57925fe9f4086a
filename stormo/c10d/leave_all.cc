#include <stormo/c10d/leave_all.h>

#include <mutex>
#include <thread>
#include <vector>

#include <stormo/c10d/backend.h>

namespace stormo::c10d {
namespace {

struct Living {
  std::mutex mutex;
  std::vector<StormoBackend*> backends;  // guarded by mutex
};

Living& living() {
  static auto* const all = new Living;  // Python may destroy backends after everything static
  return *all;
}

}  // namespace

void add_living(StormoBackend& backend) {
  const std::lock_guard lock(living().mutex);
  living().backends.push_back(&backend);
}

void remove_living(StormoBackend& backend) {
  const std::lock_guard lock(living().mutex);
  std::erase(living().backends, &backend);
}

/// Whoever destroys a backend meanwhile waits.
void leave_all() {
  const std::lock_guard lock(living().mutex);
  for (const bool worlds : {false, true}) {  // a world after its parts
    std::vector<std::thread> threads;
    for (StormoBackend* const backend : living().backends) {
      if (backend->is_world() == worlds) threads.emplace_back([backend] { backend->leave(); });
    }
    for (std::thread& t : threads) t.join();
  }
}

}  // namespace stormo::c10d
