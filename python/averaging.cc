// Gradients in the Arena, and their averages: what stormo_torch/_averaging.py and _arena.py are
// made of.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <stormo/c10d/average_hook.h>
#include <stormo/c10d/blocking_call.h>
#include <stormo/tensor/allocator.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

#include "python/averaging.h"
#include "python/backend_holder.h"
#include "python/interrupts.h"

namespace stormo::python {
namespace {

using c10d::StormoBackend;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

/// A module of C++ with the tensors of one of Python. `tables`: names of parameters whose gradients
/// are sparse, which C++ knows by their module.
std::shared_ptr<torch::nn::Module> module_of(const Named& parameters, const Named& buffers,
                                             const std::vector<std::string>& tables) {
  auto module = std::make_shared<torch::nn::Module>();
  for (const auto& [name, tensor] : parameters) {
    if (std::ranges::find(tables, name) == tables.end() || !tensor.requires_grad()) {
      module->register_parameter(name, tensor, tensor.requires_grad());
    } else {
      torch::nn::EmbeddingOptions table(tensor.size(0), tensor.size(1));
      table.sparse(true)._weight(tensor);
      module->register_module(name, torch::nn::Embedding(table));
    }
  }
  for (const auto& [name, tensor] : buffers) module->register_buffer(name, tensor);
  return module;
}

ReductionOptions options_of(std::optional<std::int64_t> bucket_bytes, bool bfloat16) {
  ReductionOptions how;
  if (bucket_bytes) {
    how.overlap = *bucket_bytes > 0 ? Overlap::buckets(*bucket_bytes) : Overlap::at_the_end();
  }
  if (bfloat16) how.codec = Codec::kBFloat16;
  return how;
}

/// stormo::DistributedDataParallel over a group of PyTorch's.
class GradientAverager {
 public:
  GradientAverager(c10::intrusive_ptr<StormoBackend> group, const Named& parameters,
                   const Named& buffers, const std::vector<std::string>& tables,
                   std::optional<std::int64_t> bucket_bytes, bool bfloat16)
      : group_(std::move(group)) {
    as_pytorch([&] {
      ddp_.emplace(group_->communicator(), module_of(parameters, buffers, tables),
                   options_of(bucket_bytes, bfloat16));
    });
    ddp_->run_hooks_in([this](const std::function<void()>& work) { as_pytorch(work); });
  }

  void set_weight(double weight) {
    as_pytorch([&] { ddp_->set_weight(weight); });
  }
  void begin_no_sync() {
    if (depth_++ == 0) local_.emplace(*ddp_);
  }
  void end_no_sync() {
    if (--depth_ == 0) local_.reset();
  }
  void reduce_gradients() {
    as_pytorch([&] { ddp_->reduce_gradients(); });
  }
  void broadcast_buffers() {
    as_pytorch([&] { ddp_->broadcast_buffers(); });
  }
  std::string overlap() const { return ddp_->overlap(); }

 private:
  /// What may wait for other ranks: Ctrl-C ends it, and a failure is PyTorch's error. Without the
  /// GIL.
  void as_pytorch(const std::function<void()>& work) const {
    const c10d::BlockingCall call(group_->link());
    try {
      work();
    } catch (const Error& e) {
      c10d::check_interrupt();  // which may be why
      std::rethrow_exception(c10d::error_of(e.status()));
    }
  }

  c10::intrusive_ptr<StormoBackend> group_;
  std::optional<DistributedDataParallel> ddp_;
  int depth_ = 0;
  std::optional<DistributedDataParallel::NoSync> local_;
};

/// While it is open, large tensors that this thread makes are in the Arena.
class ArenaScope {
 public:
  explicit ArenaScope(c10::intrusive_ptr<StormoBackend> group) : group_(std::move(group)) {}
  void open() {
    if (!scope_) scope_.emplace(group_->communicator().arena());
  }
  void close() { scope_.reset(); }

 private:
  c10::intrusive_ptr<StormoBackend> group_;
  std::optional<tensor::ThreadArena> scope_;
};

c10::intrusive_ptr<StormoBackend> shared(StormoBackend& group) {
  return c10::intrusive_ptr<StormoBackend>::reclaim_copy(&group);
}

/// The last owner of a group may wait for a thread that needs the interpreter.
template <class F>
void without_gil(F f) {
  std::optional<py::gil_scoped_release> release;
  if (PyGILState_Check() != 0) release.emplace();
  f();
}

template <class T, class... Arguments>
std::shared_ptr<T> destroyed_without_gil(Arguments&&... arguments) {
  return {new T(std::forward<Arguments>(arguments)...),
          [](const T* object) { without_gil([&] { delete object; }); }};
}

std::shared_ptr<StormoBackend> owned_without_gil(StormoBackend& group) {
  return {&group,
          [owned = shared(group)](StormoBackend*) mutable { without_gil([&] { owned.reset(); }); }};
}

}  // namespace

void bind_averaging(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<GradientAverager, std::shared_ptr<GradientAverager>>(m, "GradientAverager")
      .def(py::init([](StormoBackend& group, const Named& parameters, const Named& buffers,
                       const std::vector<std::string>& tables,
                       std::optional<std::int64_t> bucket_bytes, bool bfloat16) {
             return destroyed_without_gil<GradientAverager>(shared(group), parameters, buffers,
                                                            tables, bucket_bytes, bfloat16);
           }),
           no_gil)
      .def("set_weight", &GradientAverager::set_weight, no_gil)
      .def("begin_no_sync", &GradientAverager::begin_no_sync)
      .def("end_no_sync", &GradientAverager::end_no_sync)
      .def("reduce_gradients", &GradientAverager::reduce_gradients, no_gil)
      .def("broadcast_buffers", &GradientAverager::broadcast_buffers, no_gil)
      .def("overlap", &GradientAverager::overlap);
  py::class_<ArenaScope, std::shared_ptr<ArenaScope>>(m, "ArenaScope")
      .def(py::init(
          [](StormoBackend& group) { return destroyed_without_gil<ArenaScope>(shared(group)); }))
      .def("open", &ArenaScope::open)
      .def("close", &ArenaScope::close);
  m.def("register_average_hook", [](::c10d::Reducer& reducer, StormoBackend& group) {
    reducer.register_comm_hook(std::make_unique<c10d::AverageHook>(owned_without_gil(group)));
  });
  m.def("use_arena", [](StormoBackend& group) {
    tensor::install_arena_allocator(group.communicator().arena());
  });
  // tensor::in_arena() knows what libtorch's allocator has made, but not FSDP2's buffers
  m.def("in_arena", [](StormoBackend& group, const at::Tensor& tensor) {
    return tensor.has_storage() && group.communicator().arena().contains(tensor.storage().data());
  });
}

}  // namespace stormo::python
