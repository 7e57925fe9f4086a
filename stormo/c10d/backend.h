#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <stormo/c10d/flight_records.h>
#include <stormo/c10d/groups.h>
#include <stormo/c10d/operands.h>
#include <stormo/c10d/options.h>
#include <stormo/c10d/work.h>

namespace stormo::c10d {

/// A group of PyTorch's on Stormo's Communicator (docs/adr/0033-pytorch-backend.md).
///
/// A blocking call (opts.asyncOp is false) runs on the caller's thread. Any other returns at once,
/// whatever the other ranks do; messages always do. Tensors are dense and on the CPU, of any type,
/// size and strides; only the ranks' numbers of elements and types have to agree. Failures are the
/// Work's: wait() throws c10::DistBackendError with Stormo's first cause. Wrong arguments throw
/// c10::ValueError at once.
class StormoBackend final : public ::c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<::c10d::Work>;

  StormoBackend(GroupRanks ranks, c10::intrusive_ptr<StormoOptions> options);
  /// Leaves the group, if shutdown() has not.
  ~StormoBackend() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& opts) override;

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const ::c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const ::c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& opts) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  WorkPtr barrier(const ::c10d::BarrierOptions& opts) override;
  /// Rank 0 hears from every rank, and then tells all. It throws with the numbers of the ranks that
  /// have not come by the timeout: the first one, or all. The others throw, too, where rank 0 says
  /// nothing some seconds after the timeout.
  void monitoredBarrier(const ::c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// Nothing to agree on: ranks count the operations that they call from 0.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  ::c10d::ErrorType getError() override;

  /// By the members alone.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<::c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  /// Ends what is pending, here and on the other ranks.
  void abort() override;
  /// Leaves the group. What is pending has 2 s to end, and is cancelled then. A rank that still
  /// needs this one gets an error.
  void shutdown() override { leave(); }
  void leave();
  bool is_world() const { return ranks_.are_world(); }

  /// As long as this lives.
  comm::Communicator& communicator() const { return group(); }
  /// For a BlockingCall of who uses the communicator.
  const std::shared_ptr<GroupLink>& link() const { return link_; }

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  /// In the Arena, where peers read it in place.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

 private:
  /// What all options of calls have.
  struct Call {
    template <class T>
    Call(const T& opts) : timeout(opts.timeout), async(opts.asyncOp) {}  // NOLINT: for any of them
    std::chrono::milliseconds timeout;
    bool async;
  };
  using WorkHandle = c10::intrusive_ptr<StormoWork>;

  WorkHandle start(::c10d::OpType type, const char* title, const Call& call, Tensors inputs,
                   Tensors results);
  WorkHandle start_message(::c10d::OpType type, const char* title, const at::Tensor& tensor,
                           Rank peer, int tag);
  WorkHandle begin(StormoWork::Description operation);
  void announce(StormoWork::Description& operation);
  comm::Communicator& group() const { return ranks_.get(); }
  std::chrono::milliseconds timeout_or_own(std::chrono::milliseconds timeout) const;

  WorkPtr combine_all(::c10d::OpType type, const char* title, const Call& call,
                      const Tensors& tensors, const ::c10d::ReduceOp& op);
  void reduce_all(StormoWork& work, const Tensors& tensors, const ::c10d::ReduceOp& op,
                  comm::OperationKind kind, Rank root);
  void gather_into(StormoWork& work, const Tensors& outputs, const at::Tensor& input,
                   comm::OperationKind kind, Rank root);
  void gather_whole(StormoWork& work, const at::Tensor& output, const at::Tensor& input);
  void scatter_from(StormoWork& work, const at::Tensor& output, const at::Tensor& whole,
                    const std::vector<std::int64_t>& counts, const ::c10d::ReduceOp& op);
  at::Tensor put_together(const Tensors& tensors);
  void receive(StormoWork& work, const at::Tensor& tensor, Rank from, int tag);
  /// Of a monitored barrier: who has come, or who is missing.
  using Word = std::shared_ptr<std::int64_t>;
  comm::Work pass_word(bool sends, Rank peer, std::uint32_t tag, const Word& word);
  void hear_all(std::chrono::milliseconds timeout, std::uint32_t tag, bool wait_all_ranks);
  void report_to_rank_zero(std::chrono::milliseconds timeout, std::uint32_t tag);
  void check_rank(std::int64_t rank, const char* what) const;

  GroupRanks ranks_;
  const std::shared_ptr<GroupLink> link_;
  const c10::intrusive_ptr<StormoOptions> options_;
  std::atomic<std::chrono::milliseconds> timeout_;       // options_ have it for PyTorch
  const std::shared_ptr<FlightRecords> flight_records_;  // null: nobody asks for them
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint32_t> sparse_sums_{0};
  std::atomic<std::uint32_t> monitored_barriers_{0};
};

}  // namespace stormo::c10d
