#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <stormo/base/status.h>

namespace stormo::train {

/// One module computed by several threads of one process, each on a part of the batch, as
/// torch.nn.DataParallel does: the one line for a loop that shall not change otherwise.
///
///   stormo::DataParallel parallel(net, 4);
///   loss(parallel.forward(x), target).backward();   // gradients are the net's own
///
/// forward() cuts x along its first dimension, gives each replica the module's parameters and
/// buffers, runs the replicas side by side and concatenates what they return. backward() runs them
/// side by side as well, and hands the sums of their gradients to the module: those of the whole
/// batch on one device. Whatever watches the module's gradients, such as DistributedDataParallel,
/// works. Replica 0 is the module itself, so the running statistics that stay are those of the
/// first rows (BatchNorm normalises over each part for itself).
///
/// For K bytes of parameters and buffers and n replicas that have rows, every forward copies
/// (n-1) K bytes and every backward adds as many up, on one thread. run_replicas() with
/// DistributedDataParallel copies nothing to replicate and updates in parallel, and processes
/// reduce gradients where they lie: prefer these where the loop is yours to change.
class DataParallel {
 public:
  /// Something to compute with, and its forward.
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    std::function<torch::Tensor(const torch::Tensor&)> forward;
  };

  /// Replicas are module->clone(), so that it must be a torch::nn::Cloneable (Sequential and all
  /// layers of libtorch are). Throws Error for less than one replica, c10::Error for others.
  template <class Module>
  DataParallel(const std::shared_ptr<Module>& module, int replicas)
      : DataParallel(clones(module, replicas)) {}
  template <class Module>
  DataParallel(const torch::nn::ModuleHolder<Module>& module, int replicas)
      : DataParallel(module.ptr(), replicas) {}
  /// For modules that cannot be cloned: the first is the user's own, the others are built alike.
  /// Throws Error when their parameters and buffers differ in name, shape or type.
  explicit DataParallel(std::vector<Replica> replicas);

  /// Replicas without rows rest; with no rows at all the first one computes. Their outputs need at
  /// least one dimension. Blocks; exceptions of replicas leave it, the first one, and so they leave
  /// backward(). Gradients of gradients are refused. Hooks of parameters see the part of replica 0
  /// and then the sum. One thread at a time.
  torch::Tensor forward(const torch::Tensor& x);

  /// That all forwards so far copied from the module into replicas.
  std::uint64_t bytes_copied() const;

 private:
  struct State;

  template <class Module>
  static Replica replica_of(const std::shared_ptr<Module>& module) {
    return {module, [module](const torch::Tensor& x) { return module->forward(x); }};
  }
  template <class Module>
  static std::vector<Replica> clones(const std::shared_ptr<Module>& module, int replicas) {
    std::vector<Replica> out;
    for (int i = 0; i < replicas; ++i) {
      out.push_back(
          replica_of(i == 0 ? module : std::dynamic_pointer_cast<Module>(module->clone())));
    }
    return out;
  }

  std::shared_ptr<State> state_;
};

}  // namespace stormo::train

namespace stormo {
using train::DataParallel;
}  // namespace stormo
