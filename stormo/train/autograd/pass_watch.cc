#include <stormo/train/autograd/pass_watch.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/version.h>

namespace stormo::train {

namespace autograd = torch::autograd;

struct PassWatch::Entry {
  std::function<void()> before_pass;
  std::thread::id thread;

  struct All {
    std::mutex mutex;
    std::vector<Entry*> entries;
  };
  static All& all() {
    static All* const all = new All;  // watches may go when static objects have gone
    return *all;
  }
  /// Calls those of this thread, without the lock: they may make other watches.
  static void call() {
    std::vector<Entry*> mine;
    {
      const std::lock_guard lock(all().mutex);
      std::ranges::copy_if(all().entries, std::back_inserter(mine),
                           [](const Entry* e) { return e->thread == std::this_thread::get_id(); });
    }
    for (const Entry* e : mine) e->before_pass();
  }
  static void install();
};

namespace {

/// Does everything by the engine that was there before.
class WatchedEngine final : public autograd::Engine {
 public:
  WatchedEngine(autograd::Engine& inner, void (*before_pass)())
      : inner_(inner), before_pass_(before_pass) {}

  autograd::variable_list execute(const autograd::edge_list& roots,
                                  const autograd::variable_list& inputs, bool keep_graph,
                                  bool create_graph, bool accumulate_grad,
                                  const autograd::edge_list& outputs) override {
    if (accumulate_grad) before_pass_();
    return inner_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::unique_ptr<autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return inner_.make_anomaly_metadata();
  }
  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return inner_.get_default_saved_variable_hooks();
  }
#if TORCH_VERSION_MINOR >= 14
  std::vector<std::unique_ptr<autograd::NodeCreationHook>> get_node_creation_hooks() override {
    return inner_.get_node_creation_hooks();
  }
#endif

 private:
  autograd::Engine& inner_;
  void (*before_pass_)();
};

}  // namespace

void PassWatch::Entry::install() {
  static std::once_flag once;
  std::call_once(once, [] {
    // As libtorch's own engines, it stays until the process ends.
    static auto* const engine = new WatchedEngine(autograd::Engine::get_default_engine(), call);
    autograd::set_default_engine_stub([]() -> autograd::Engine& { return *engine; });
  });
}

PassWatch::PassWatch(std::function<void()> before_pass)
    : entry_(std::make_unique<Entry>(std::move(before_pass), std::this_thread::get_id())) {
  Entry::install();
  const std::lock_guard lock(Entry::all().mutex);
  Entry::all().entries.push_back(entry_.get());
}

PassWatch::~PassWatch() {
  const std::lock_guard lock(Entry::all().mutex);
  std::erase(Entry::all().entries, entry_.get());
}

void PassWatch::follow_thread() {
  const std::lock_guard lock(Entry::all().mutex);
  entry_->thread = std::this_thread::get_id();
}

}  // namespace stormo::train
