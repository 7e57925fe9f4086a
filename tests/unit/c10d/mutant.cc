#include "tests/unit/c10d/mutant.h"

#include <cstdlib>
#include <iostream>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace stormo::c10d {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

struct NoWork : ::c10d::Work {
  NoWork() { finish(); }
};

class Mutant final : public ::c10d::Backend {
 public:
  Mutant(Mutation mutation, BackendPtr right, BackendPtr wrong)
      : Backend(right->getRank(), right->getSize()),
        mutation_(std::move(mutation)),
        right_(std::move(right)),
        wrong_(std::move(wrong)) {}

  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override {
    return work("broadcast", [&](Backend& b) { return b.broadcast(tensors, opts); });
  }
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    return work("allreduce", [&](Backend& b) { return b.allreduce(tensors, opts); });
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override {
    return work("allreduce_sparse", [&](Backend& b) { return b.allreduce_sparse(tensors, opts); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override {
    return work("allreduce_coalesced",
                [&](Backend& b) { return b.allreduce_coalesced(tensors, opts); });
  }
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override {
    return work("reduce", [&](Backend& b) { return b.reduce(tensors, opts); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override {
    return work("allgather", [&](Backend& b) { return b.allgather(outputs, inputs, opts); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override {
    return work("_allgather_base",
                [&](Backend& b) { return b._allgather_base(output, input, opts); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override {
    return work("allgather_coalesced",
                [&](Backend& b) { return b.allgather_coalesced(outputs, inputs, opts); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override {
    return work("allgather_into_tensor_coalesced", [&](Backend& b) {
      return b.allgather_into_tensor_coalesced(outputs, inputs, opts);
    });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& opts) override {
    return work("gather",
                [&](Backend& b) { return b.gather(outputs, inputs, root_there("gather", opts)); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const ::c10d::ScatterOptions& opts) override {
    return work("scatter", [&](Backend& b) {
      return b.scatter(outputs, inputs, root_there("scatter", opts));
    });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override {
    return work("reduce_scatter",
                [&](Backend& b) { return b.reduce_scatter(outputs, inputs, opts); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override {
    return work("_reduce_scatter_base",
                [&](Backend& b) { return b._reduce_scatter_base(output, input, opts); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override {
    return work("reduce_scatter_tensor_coalesced", [&](Backend& b) {
      return b.reduce_scatter_tensor_coalesced(outputs, inputs, opts);
    });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& out_sizes,
                        std::vector<std::int64_t>& in_sizes,
                        const ::c10d::AllToAllOptions& opts) override {
    return work("alltoall_base", [&](Backend& b) {
      return b.alltoall_base(output, input, out_sizes, in_sizes, opts);
    });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const ::c10d::AllToAllOptions& opts) override {
    return work("alltoall", [&](Backend& b) { return b.alltoall(outputs, inputs, opts); });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return work("send", [&](Backend& b) { return b.send(tensors, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return work("recv", [&](Backend& b) { return b.recv(tensors, from, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return work("recvAnysource", [&](Backend& b) { return b.recvAnysource(tensors, tag); });
  }
  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override {
    return work("barrier", [&](Backend& b) { return b.barrier(opts); });
  }

  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    if (Backend* const b = doer("monitoredBarrier")) b->monitoredBarrier(opts, wait_all_ranks);
  }
  BackendPtr split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& opts) override {
    Backend* const b = doer("split");
    return b == nullptr ? nullptr : b->split(store, ranks, opts);
  }
  void abort() override {
    if (Backend* const b = doer("abort")) b->abort();
  }
  void shutdown() override {
    if (Backend* const b = doer("shutdown")) b->shutdown();
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    Backend* const b = doer("allocateTensor");
    return b == nullptr ? at::empty({size}, options) : b->allocateTensor(size, options);
  }

  const std::string getBackendName() const override { return right_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return right_->getBackendOptions(); }
  bool supportsSplitting() const override { return right_->supportsSplitting(); }
  bool supportsTensorAlloc(c10::DeviceIndex i) override { return right_->supportsTensorAlloc(i); }
  void setTimeout(std::chrono::milliseconds timeout) override { right_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { right_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return right_->getSequenceNumberForGroup(); }
  ::c10d::ErrorType getError() override { return right_->getError(); }

 private:
  /// Who does it; null: nobody.
  Backend* doer(const std::string& operation) const {
    if (operation != mutation_.operation) return right_.get();
    std::cerr << "mutation: " + operation + ":" + mutation_.kind + "\n";
    return wrong_.get();
  }
  template <class Call>
  WorkPtr work(const char* operation, const Call& call) const {
    if (Backend* const b = doer(operation)) return call(*b);
    return c10::make_intrusive<NoWork>();
  }
  /// Only the root has a list of tensors: this rank stays it, whatever its number there is.
  template <class T>
  T root_there(const char* operation, T opts) const {
    const bool reversed = operation == mutation_.operation && mutation_.kind == "reversed";
    if (reversed) opts.rootRank = getSize() - 1 - opts.rootRank;
    return opts;
  }

  const Mutation mutation_;
  const BackendPtr right_, wrong_;
};

}  // namespace

std::optional<Mutation> mutation() {
  const char* const text = std::getenv("STORMO_TEST_MUTATION");
  if (text == nullptr) return std::nullopt;
  const std::string both = text;
  const std::size_t colon = both.find(':');
  return Mutation{both.substr(0, colon), both.substr(colon + 1)};
}

BackendPtr mutant(const Mutation& mutation, BackendPtr right, BackendPtr wrong) {
  return c10::make_intrusive<Mutant>(mutation, std::move(right), std::move(wrong));
}

std::vector<BackendPtr> gloo_backends(int size, std::chrono::milliseconds timeout) {
  using ::c10d::ProcessGroupGloo;
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  std::vector<BackendPtr> all(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      all[static_cast<std::size_t>(rank)] = c10::make_intrusive<ProcessGroupGloo>(
          store, rank, size, ProcessGroupGloo::Options::create_default(timeout));
    });
  }
  for (std::thread& t : threads) t.join();
  return all;
}

}  // namespace stormo::c10d
